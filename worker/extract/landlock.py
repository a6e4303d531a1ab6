"""The files and networks that a confined process may reach: the code that it runs, and nothing more.

Landlock is part of the kernel (from Linux 5.13 on; connections from 6.7 on) and needs no privilege. Where it
is missing, only seccomp and the limits confine the process.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
# How many file rights, counted from the lowest bit, each version of the interface can forbid.
_FILE_BITS: Final = {1: 13, 2: 14, 3: 15, 4: 15}
_NEWEST_FILE_BITS: Final = 16
_CONNECT_AND_BIND: Final = 0b11  # from version 4 on
_FOREIGN_SIGNALS_AND_SOCKETS: Final = 0b11  # from version 6 on
# Python, its libraries, and what they read: MIME types, and fonts that a PDF does not embed.
_READABLE: Final = (
    sys.prefix,
    sys.base_prefix,
    str(Path(__file__).resolve().parent),
    *("/usr", "/lib", "/lib64", "/nix/store", "/etc/fonts", "/etc/mime.types", "/etc/ld.so.cache"),
    *("/etc/localtime", "/dev/null", "/dev/urandom"),
)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def wall_off() -> bool:
    """Restrict this process to reading its own code: no writes, no other processes.

    The process must have set `PR_SET_NO_NEW_PRIVS`.

    Returns:
        False if the kernel has no Landlock.
    """
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    version = syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    wanted = _Ruleset(
        files=(1 << _FILE_BITS.get(version, _NEWEST_FILE_BITS)) - 1,
        net=_CONNECT_AND_BIND if version >= 4 else 0,
        scoped=_FOREIGN_SIGNALS_AND_SOCKETS if version >= 6 else 0,
    )
    num_fields = 1 + (version >= 4) + (version >= 6)
    ruleset = syscall(_CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(8 * num_fields), 0)
    if ruleset < 0:
        return False
    try:
        for name in dict.fromkeys(_READABLE):
            _allow(syscall, ruleset, name)
        return bool(syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(syscall: "ctypes._NamedFuncPointer", ruleset: int, name: str) -> None:
    """Allow reading a file, or everything below a folder; ignore one that is missing."""
    try:
        descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_folder = Path(name).is_dir()
        rule = _Beneath(allowed=_READ_FILE | (_READ_DIR if is_folder else 0), folder=descriptor)
        syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
