"""`python -m worker inference|service`: load and run one worker process."""

import gc
import sys


def main() -> int:
    """Run the worker until SIGTERM and return its exit code."""
    # Nothing that modules make is garbage: looking for it takes a tenth of the start.
    gc.disable()
    from worker import process

    gc.freeze()
    gc.enable()
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
