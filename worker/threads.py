"""What runs in a worker process besides Celery."""

from typing import Protocol


class WorkerThreads(Protocol):
    """The threads that run as long as the worker does."""

    def start(self) -> None:
        """Start the threads."""

    def begin_stop(self) -> None:
        """Stop taking on new work. Returns at once, so a signal handler may call it."""

    def stop(self) -> None:
        """Stop the threads and wait until they have ended."""
