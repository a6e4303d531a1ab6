"""`python -m worker inference|service`: load and run one worker process."""

import gc
import sys


def main() -> int:
    """Run the worker until SIGTERM and return its exit code."""
    # Nothing that modules make is garbage: looking for it takes a tenth of the start.
    gc.disable()
    from worker import process

    role = process.chosen_role()
    kind = process.load(role)
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000)  # a thousand streams reach the default of 700 objects a hundred times a second
    return process.run(role, kind)


if __name__ == "__main__":
    sys.exit(main())
