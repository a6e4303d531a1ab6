"""The verbs of `longbatch`, one module for each group."""
