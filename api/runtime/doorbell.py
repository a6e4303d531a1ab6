"""Rings doorbells from a thread of its own, so that a frozen broker delays no response."""

import threading
from collections.abc import Iterable
from typing import Self

import celery

from jobs import doorbell
from jobs.job_rows import NewJob
from jobs.models import Job
from jobs.settings import BrokerSettings
from jobs.states import TERMINAL, JobState


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
        while (name := self._next()) is not None:
            doorbell.ring(broker, sender, name)

    def _next(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._closed)
            return None if self._closed else self._wanted.pop()


def _doorbell_for(job: Job | NewJob) -> str | None:
    if job.state == JobState.QUEUED:
        return doorbell.INFERENCE
    if job.state == JobState.PREPARING:
        return doorbell.SERVICE
    return doorbell.EVENTS if job.state in TERMINAL and job.webhook_url is not None else None
