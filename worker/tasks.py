"""The doorbell's tasks: they carry no payload and only wake the worker."""

from collections.abc import Callable

import celery

from jobs.doorbell import QUEUES, WAKE_TASKS


def register(app: celery.Celery, queue: str, on_ring: Callable[[str], None]) -> None:
    """Register the tasks of this queue's doorbells with the application.

    Args:
        app: the worker's application.
        queue: the queue that it consumes.
        on_ring: called with the doorbell's name for each message; must be quick.
    """
    for name in (name for name, of in QUEUES.items() if of == queue):
        app.task(name=WAKE_TASKS[name], ignore_result=True, shared=False)(_ringing(name, on_ring))


def _ringing(name: str, on_ring: Callable[[str], None]) -> Callable[[], None]:
    def wake() -> None:
        on_ring(name)

    return wake
