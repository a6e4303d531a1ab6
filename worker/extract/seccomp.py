"""The system calls of a confined process: no sockets, no new processes, no control over other processes.

seccomp is part of the kernel (from Linux 3.5 on) and needs no privilege. It closes what Landlock leaves open:
datagrams, sockets with a path, programs, and changes of files' mode or owner by name. Threads remain
possible. Where seccomp is missing, or the architecture is unknown here, only Landlock and the limits confine
the process.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from errno import ENOSYS, EPERM
from typing import Final

# Newer calls do not exist for the process, as on an older kernel, until they are reviewed here. The numbers
# of x86-64's x32 interface are far above this one too.
_NEWEST: Final = 450
# The same numbers on all architectures.
_DENIED_ANYWHERE: Final = (
    *range(424, 435),  # pidfd_send_signal, io_uring_*, open_tree, move_mount, fs*, pidfd_open
    *(
        438,
        440,
        442,
        443,
        447,
        448,
    ),  # pidfd_getfd, process_madvise, mount_setattr, quotactl_fd, memfd_secret,
    # process_mrelease
)
_CLONE3: Final = 435  # its flags are in memory, which a filter cannot read; libraries fall back to `clone`
_CLONE_THREAD: Final = 0x10000
_PR_SET_PDEATHSIG: Final = 1

# Opcodes of the filter: load, conditional jumps, return.
_LOAD, _IF_EQUAL, _IF_ABOVE, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _KILL_PROCESS, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


@dataclass(frozen=True, slots=True)
class _Machine:
    """The numbers of one architecture."""

    audit: int
    clone: int
    prctl: int
    prlimit: int
    tgkill: int
    denied: dict[str, tuple[int, ...]]


_X86_64: Final = _Machine(
    audit=0xC000003E,
    clone=56,
    prctl=157,
    prlimit=302,
    tgkill=234,
    denied={
        # socket, connect, accept, send*, recv*, bind, listen, socketpair, accept4, recvmmsg, sendmmsg
        "sockets": (*range(41, 48), 49, 50, 53, 288, 299, 307),
        # fork, vfork, execve, execveat, uselib
        "processes": (57, 58, 59, 322, 134),
        # ptrace, process_vm_readv, process_vm_writev, kcmp, perf_event_open, userfaultfd, bpf
        "others' memory": (101, 310, 311, 312, 298, 323, 321),
        # kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, setpgid, setsid, setpriority
        "signals and groups": (62, 200, 129, 297, 109, 112, 141),
        # shmget, shmat, shmctl, semget, semop, semctl, semtimedop, msgget … msgctl, mq_open, mq_unlink
        "shared memory and queues": (29, 30, 31, 64, 65, 66, 220, *range(68, 72), 240, 241),
        # chmod, fchmod, chown, fchown, lchown, fchownat, fchmodat, utime, utimes, futimesat, utimensat,
        # setxattr … fsetxattr, removexattr … fremovexattr
        "files' attributes": (
            *range(90, 95),
            260,
            268,
            132,
            235,
            261,
            280,
            *range(188, 191),
            *range(197, 200),
        ),
        # name_to_handle_at, open_by_handle_at, chroot, pivot_root, mount, umount2, setns, unshare
        "other views of files": (303, 304, 161, 155, 165, 166, 308, 272),
        # keyctl, add_key, request_key, kexec_*, *_module, reboot, swap*, acct, quotactl, personality,
        # modify_ldt, iopl, ioperm
        "the kernel": (
            *range(248, 251),
            *(246, 320, 175, 176, 313, 169, 167, 168, 163, 179, 135, 154, 172, 173),
        ),
    },
)
_AARCH64: Final = _Machine(
    audit=0xC00000B7,
    clone=220,
    prctl=167,
    prlimit=261,
    tgkill=131,
    denied={
        # socket … recvfrom, sendmsg, recvmsg, accept4, recvmmsg, sendmmsg
        "sockets": (*range(198, 208), 211, 212, 242, 243, 269),
        # execve, execveat
        "processes": (221, 281),
        "others' memory": (117, 270, 271, 272, 241, 282, 280),
        "signals and groups": (129, 130, 138, 240, 154, 157, 140),
        # mq_open, mq_unlink, msgget … msgsnd, semget … semop, shmget … shmdt
        "shared memory and queues": (180, 181, *range(186, 198)),
        # fchmod, fchmodat, fchownat, fchown, utimensat, setxattr … fsetxattr, removexattr … fremovexattr
        "files' attributes": (*range(52, 56), 88, *range(5, 8), *range(14, 17)),
        "other views of files": (264, 265, 51, 41, 40, 39, 268, 97),
        "the kernel": (*range(217, 220), 104, 294, 105, 106, 273, 142, 224, 225, 89, 60, 92),
    },
)
_MACHINES: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def forbid() -> bool:
    """Deny this process, for good, the system calls that reading does not need.

    The process must have set `PR_SET_NO_NEW_PRIVS`, and have only one thread.

    Returns:
        False if the kernel has no seccomp, or the architecture is unknown here.
    """
    machine = _MACHINES.get(platform.machine())
    return machine is not None and install(list(_rules(machine)))


def install(rules: list[tuple[int, int, int, int]]) -> bool:
    """Filter this process's system calls by (code, jump if true, if false, operand)."""
    program = _Program(len(rules), (_Instruction * len(rules))(*(_Instruction(*rule) for rule in rules)))
    prctl = ctypes.CDLL(None).prctl
    return bool(prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _rules(machine: _Machine) -> Iterator[tuple[int, int, int, int]]:
    yield (_LOAD, 0, 0, _MACHINE_AT)
    yield (_IF_EQUAL, 1, 0, machine.audit)
    yield (_RETURN, 0, 0, _KILL_PROCESS)
    yield (_LOAD, 0, 0, _NUMBER_AT)
    yield (_IF_ABOVE, 0, 1, _NEWEST)
    yield (_RETURN, 0, 0, _ERROR | ENOSYS)
    yield (_IF_EQUAL, 0, 1, _CLONE3)
    yield (_RETURN, 0, 0, _ERROR | ENOSYS)
    for number in (*_DENIED_ANYWHERE, *(number for group in machine.denied.values() for number in group)):
        yield (_IF_EQUAL, 0, 1, number)
        yield (_RETURN, 0, 0, _ERROR | EPERM)
    # It may start threads, signal itself (`abort`) and set its own limits. It may not change the signal that
    # ends it with its parent.
    yield from _when(machine.clone, _IF_ANY_BIT, _CLONE_THREAD, allowed=True)
    yield from _when(machine.tgkill, _IF_EQUAL, os.getpid(), allowed=True)
    yield from _when(machine.prlimit, _IF_EQUAL, 0, allowed=True)
    yield from _when(machine.prctl, _IF_EQUAL, _PR_SET_PDEATHSIG, allowed=False)
    yield (_RETURN, 0, 0, _ALLOW)


def _when(number: int, test: int, operand: int, *, allowed: bool) -> Iterator[tuple[int, int, int, int]]:
    """Allow a call if testing the lower half of its first argument gives `allowed`."""
    yield (_IF_EQUAL, 0, 4, number)
    yield (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)
    yield (test, 1, 0, operand) if allowed else (test, 0, 1, operand)
    yield (_RETURN, 0, 0, _ERROR | EPERM)
    yield (_RETURN, 0, 0, _ALLOW)
