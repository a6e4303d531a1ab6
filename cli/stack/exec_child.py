"""Becomes the given program, which the kernel will signal when the process that started it dies.

Run by path, not imported: `exec_child.py PARENT_PID SIGNAL UID GID PROGRAM ARGUMENT…`. A function between
fork and exec could do the same, but may deadlock when the parent has threads.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_KEEP = -1  # of UID and GID: stay who we are


def main() -> None:
    """Replaces this process by the program; never returns."""
    parent, death_signal, uid, gid = (int(word) for word in sys.argv[1:5])
    program = sys.argv[5:]
    if uid != _KEEP:
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user, which clears it.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    try:
        os.execvp(program[0], program)  # noqa: S606 no shell is wanted
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


main()
