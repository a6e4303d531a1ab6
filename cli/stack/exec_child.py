"""Becomes the given program, which the kernel signals when the process that started it dies.

Run by path, not imported: `exec_child.py PARENT_PID SIGNAL UID GID GUARD PROGRAM ARGUMENT…`. A function
between fork and exec could do the same, but may deadlock if the parent has threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_KEEP = -1  # for UID and GID: do not change user


def main() -> None:
    """Replace this process with the program; never return."""
    parent, death_signal, uid, gid, guard = (int(word) for word in sys.argv[1:6])
    program = sys.argv[6:]
    if uid != _KEEP:
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)
    if guard:
        start_guard()
    # After the change of user, which clears the death signal.
    die_with_parent(parent, death_signal)
    try:
        os.execvp(program[0], program)  # noqa: S606 no shell needed
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


def die_with_parent(parent: int, death_signal: int) -> None:
    """Request the signal at the parent's death; exit now if it is already dead.

    Only Linux sends it: elsewhere the program outlives a parent that is killed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")


def start_guard() -> None:
    """Fork a child that kills the program's process group when the program dies."""
    program = os.getpid()
    if os.fork():
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    die_with_parent(program, signal.SIGUSR1)
    signal.sigwait([signal.SIGUSR1])
    os.killpg(program, signal.SIGKILL)


main()
