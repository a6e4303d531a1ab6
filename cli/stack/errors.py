"""Errors of the local stack."""

from jobs.errors import LongbatchError


class StackError(LongbatchError):
    """The local stack could not start."""

    code = "stack_error"


class DirectoryInUseError(StackError):
    """Another process uses this data directory; stop it or choose another --data-dir."""

    code = "data_dir_in_use"


class PortInUseError(StackError):
    """The port is taken; choose another --port."""

    code = "port_in_use"
