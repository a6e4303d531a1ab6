"""`python -m api`: loads the service and runs it as one process."""

import gc
import sys


def main() -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit status."""
    # Nothing that modules make is garbage: looking for it takes a sixth of the start.
    gc.disable()
    from api import server

    gc.freeze()
    gc.enable()
    return server.main()


if __name__ == "__main__":
    sys.exit(main())
