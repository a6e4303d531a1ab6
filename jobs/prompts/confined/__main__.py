"""Answer questions, one line of JSON each, until standard input ends; spend too much on one, and be killed.

Compiling and matching a schema may take time and memory exponential in its size, whatever the library; no
limit on schemas that real ones keep would prevent it. The kernel's timer counts this process's own time, so
that a busy machine refuses nothing.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, Final

from jobs.prompts.confined.answer_faults import find_fault
from jobs.prompts.confined.compiling import schema_fault
from jobs.prompts.guides import Guide

# The most that schemas within the budget of `guides` take was 0.04 s, on one core of an EPYC 7B13.
_COMPILE_SECONDS: Final = 0.25
_CHECK_SECONDS: Final = 1.0
_MAX_MEMORY: Final = 512 * 2**20
# What one question leaves behind must not be missing to the next one.
_MAX_KEPT: Final = _MAX_MEMORY // 2
_NICENESS: Final = 5  # the processes that answer callers go first


def main() -> None:
    """Answer each line with a fault or null, and whether this process answers no more."""
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        # Its signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, _COMPILE_SECONDS if "schemas" in asked else _CHECK_SECONDS)
        fault = _fault(asked)
        signal.setitimer(signal.ITIMER_PROF, 0)
        is_last = _mapped_bytes() > _MAX_KEPT
        sys.stdout.write(f"{json.dumps({'fault': fault, 'is_last': is_last})}\n")
        sys.stdout.flush()
        if is_last:
            return


def _fault(asked: dict[str, Any]) -> object:
    if "schemas" in asked:
        return schema_fault(asked["schemas"])
    return find_fault(Guide.read(asked["guide"]), asked["text"], quotes=asked["quotes"])


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
