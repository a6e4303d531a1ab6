"""Becomes the given program, which the kernel will signal when the process that started it dies.

Run by path, not imported: `exec_child.py PARENT_PID SIGNAL UID GID GUARD PROGRAM ARGUMENT…`. A function
between fork and exec could do the same, but may deadlock when the parent has threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_KEEP = -1  # of UID and GID: stay who we are


def main() -> None:
    """Replaces this process by the program; never returns."""
    parent, death_signal, uid, gid, guard = (int(word) for word in sys.argv[1:6])
    program = sys.argv[6:]
    if uid != _KEEP:
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)
    if guard:
        start_guard()
    # After the change of user, which clears it.
    die_with_parent(parent, death_signal)
    try:
        os.execvp(program[0], program)  # noqa: S606 no shell is wanted
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


def die_with_parent(parent: int, death_signal: int) -> None:
    """We get the signal when our parent dies, or end now when that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")


def start_guard() -> None:
    """A child of the program to come waits for its death, then kills what it left in its process group."""
    program = os.getpid()
    if os.fork():
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    die_with_parent(program, signal.SIGUSR1)
    signal.sigwait([signal.SIGUSR1])
    os.killpg(program, signal.SIGKILL)


main()
