"""The doorbell's tasks: they carry nothing and only say that it is time to look."""

from collections.abc import Callable

import celery

from jobs.doorbell import QUEUES, WAKE_TASKS


def register(app: celery.Celery, queue: str, on_ring: Callable[[str], None]) -> None:
    """The tasks of the queue's bells are known to the application.

    Args:
        app: of a worker.
        queue: that it consumes.
        on_ring: called with the bell for each message; must be quick.
    """
    for bell in (name for name, of in QUEUES.items() if of == queue):
        app.task(name=WAKE_TASKS[bell], ignore_result=True, shared=False)(_ringing(bell, on_ring))


def _ringing(bell: str, on_ring: Callable[[str], None]) -> Callable[[], None]:
    def wake() -> None:
        on_ring(bell)

    return wake
