"""Check answers, one line of JSON each, until standard input ends; spend too much on one, and be killed.

Matching a schema may take exponentially long in its size, whatever the library; no limit on schemas that real
ones keep would prevent it. The kernel's timer counts this process's own time, so that a busy machine makes no
answer wrong.
"""

import json
import resource
import signal
import sys
from typing import Final

from jobs.prompts.guides import Guide
from worker.guides.checking import find_fault

_SECONDS: Final = 1.0
_MAX_MEMORY: Final = 2**30


def main() -> None:
    """Answer each line with the fault of the answer in it, or null."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)  # its signal ends the process
        fault = find_fault(Guide.read(asked["guide"]), asked["text"], quotes=asked["quotes"])
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        sys.stdout.write(f"{json.dumps(fault)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
