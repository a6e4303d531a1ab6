"""The command `longbatch`, and the local stack that it can start."""
