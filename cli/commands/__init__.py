"""The subcommands of `longbatch`, one module for each group."""
