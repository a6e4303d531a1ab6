"""The command line `longbatch` and the local stack that it can start."""
