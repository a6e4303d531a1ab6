"""Rings doorbells from a thread of its own, so that a frozen broker delays no response."""

import threading
import time
from collections.abc import Iterable
from typing import Final, Self

import celery

from jobs import doorbell
from jobs.models import Job
from jobs.models.new_job import NewJob
from jobs.settings import BrokerSettings
from jobs.states import TERMINAL, JobState

# What is submitted so soon after a ring waits for the next: rings one after the other took the interpreter a
# tenth of each submission, and the worker's look, which finds all of it, takes longer.
_PAUSE_SECONDS: Final = 0.005


class Doorbell:
    """Doorbells to ring, collected for one thread; several rings of one doorbell count as one."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._wanted: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: it may hang in the broker's socket for a few seconds when the process ends.
        self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)

    def start(self) -> Self:
        """Start the thread that rings."""
        self._thread.start()
        return self

    def ring(self, name: str) -> None:
        """Wake the workers of this doorbell soon, if the broker works; return at once."""
        with self._changed:
            self._wanted.add(name)
            self._changed.notify()

    def ring_for(self, accepted: Iterable[Job | NewJob]) -> None:
        """Wake the workers of these new jobs soon, if the broker works; return at once."""
        wanted = {name for job in accepted if (name := _doorbell_for(job)) is not None}
        with self._changed:
            self._wanted |= wanted
            self._changed.notify()

    def close(self) -> None:
        """Stop ringing."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        broker = doorbell.connect(
            self._settings.url.get_secret_value(), socket_timeout=self._settings.socket_timeout_seconds
        )
        sender = celery.Celery(
            "longbatch-api", broker=self._settings.url.get_secret_value(), set_as_current=False
        )
        sender.conf.update(task_ignore_result=True, **doorbell.celery_settings(self._settings))
        doorbell.is_reachable(broker)  # connects, for the first ring to find it so
        while wanted := self._next():
            for name in wanted:
                doorbell.ring(broker, sender, name)
            time.sleep(_PAUSE_SECONDS)

    def _next(self) -> set[str]:
        """Wait for doorbells to ring, and return them; none: it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._closed)
            wanted, self._wanted = self._wanted, set()
            return set() if self._closed else wanted


def _doorbell_for(job: Job | NewJob) -> str | None:
    if job.state == JobState.QUEUED:
        return doorbell.INFERENCE
    if job.state == JobState.PREPARING:
        return doorbell.SERVICE
    return doorbell.EVENTS if job.state in TERMINAL and job.webhook_url is not None else None
