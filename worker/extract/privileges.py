"""Dropping root in a process that reads untrusted bytes."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

NOBODY: Final = 65534  # also the kernel's id for unmapped users

_PR_SET_KEEPCAPS: Final = 8
_CAPABILITIES_VERSION: Final = 0x20080522
_CAP_DAC_READ_SEARCH: Final = 2
_READ_BY_OTHERS, _ENTERED_BY_OTHERS = 0o004, 0o001


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int32))


class _Sets(ctypes.Structure):
    """The lower 32 capabilities, then the upper 32, each as three sets of bits."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
        ("upper", ctypes.c_uint32 * 3),
    )


def give_up_root() -> None:
    """Become `nobody` if this process is root's: no groups, at most one capability.

    Modules are imported while a document is read. If only root can read them, as in a clone below /root, the
    process keeps the capability to read files; Landlock, if the kernel has it, limits that to our own code.

    A root that may not become another user, as in a container without capabilities, stays root.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None)
    reads_all = not _is_code_open_to_all()
    libc.prctl(_PR_SET_KEEPCAPS, int(reads_all), 0, 0, 0)
    with suppress(OSError):
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if reads_all and os.geteuid() != 0:
        kept = 1 << _CAP_DAC_READ_SEARCH
        header = _Header(version=_CAPABILITIES_VERSION)
        libc.capset(ctypes.byref(header), ctypes.byref(_Sets(effective=kept, permitted=kept)))


def _is_code_open_to_all() -> bool:
    """Return True if every user can read the loaded modules, and so could import more."""
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = {Path(name).resolve() for name in names if name is not None}
    folders = {folder for file in files for folder in file.parents}
    return all(file.stat().st_mode & _READ_BY_OTHERS for file in files) and all(
        folder.stat().st_mode & _ENTERED_BY_OTHERS for folder in folders
    )
