"""Answer questions, one line of JSON each, until standard input ends; each in a fork, which may be killed.

Compiling and matching a schema may take time and memory exponential in its size, whatever the library; no
limit on schemas that real ones keep would prevent it. The kernel's timer counts a fork's own time, so that a
busy machine refuses nothing. A fork takes 2 ms; a new process, where one was killed, a tenth of a second.
"""

import json
import os
import resource
import signal
import sys
from typing import Any, Final

from jobs.prompts.confined.answer_faults import find_fault
from jobs.prompts.confined.compiling import schema_fault
from jobs.prompts.guides import Guide

# Schemas within the budget of `guides` take a quarter of it on a core of an EPYC 7B13.
_COMPILE_SECONDS: Final = 0.15
_CHECK_SECONDS: Final = 1.0
_MAX_MEMORY: Final = 512 * 2**20
_NICENESS: Final = 10  # the processes that answer callers go first


def main() -> None:
    """Write a line for each question: its fault or null, or that finding it takes too much."""
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            _answer(line)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return  # by the machine, for want of memory: that may not be the question's fault
        if status:
            _write({"is_too_costly": True})


def _answer(line: bytes) -> None:
    """Answer a question and end this process."""
    asked = json.loads(line)
    # Its signal ends the process.
    signal.setitimer(signal.ITIMER_PROF, _COMPILE_SECONDS if "schemas" in asked else _CHECK_SECONDS)
    fault = _fault(asked)
    signal.setitimer(signal.ITIMER_PROF, 0)
    _write({"fault": fault})
    os._exit(0)


def _fault(asked: dict[str, Any]) -> object:
    if "schemas" in asked:
        return schema_fault(asked["schemas"])
    return find_fault(Guide.read(asked["guide"]), asked["text"], quotes=asked["quotes"])


def _write(reply: dict[str, object]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    main()
