"""The entry point of the server's commands, for the command `longbatch`."""

from cli.table import COMMANDS

__all__ = ["COMMANDS"]
