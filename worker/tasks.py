"""The doorbell's two tasks: they carry nothing and only say that it is time to look."""

from collections.abc import Callable

import celery

from jobs.queues import WAKE_TASKS


def register(app: celery.Celery, queue: str, on_ring: Callable[[], None]) -> None:
    """The queue's task is known to the application; each message calls `on_ring`, which must be quick."""
    app.task(name=WAKE_TASKS[queue], ignore_result=True, shared=False)(on_ring)
