"""Rings doorbells in a thread of its own, so that a frozen broker delays no response."""

import threading
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Self

from jobs import doorbell, liveness
from jobs.models import Job
from jobs.settings import BrokerSettings
from jobs.states import TERMINAL, JobState


class Doorbell:
    """Doorbells to ring; several rings of one doorbell count as one."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._wanted: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: it may hang in the broker's socket for a few seconds when the process ends.
        self._thread = threading.Thread(
            target=liveness.guarded("doorbell", self._run), name="doorbell", daemon=True
        )

    def start(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def ring(self, name: str) -> None:
        """Wake the workers of this doorbell, if the broker works; return at once."""
        self._want({name})

    def ring_for(self, accepted: Iterable[Job]) -> None:
        """Wake the workers of these new jobs, if the broker works; return at once."""
        self._want({name for job in accepted if (name := _doorbell_for(job)) is not None})

    def close(self) -> None:
        """Stop ringing."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _want(self, names: set[str]) -> None:
        with self._changed:
            self._wanted |= names
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                names, self._wanted = self._wanted, set()
            for name in names:
                doorbell.ring(self._sender, name)
            if self._closed:
                return
            time.sleep(doorbell.PAUSE_SECONDS)

    @cached_property
    def _sender(self) -> doorbell.Sender:
        """Celery's application. It takes 60 ms to load, which the start of the API need not wait for."""
        import celery

        sender = celery.Celery(
            "longbatch-api", broker=self._settings.url.get_secret_value(), set_as_current=False
        )
        sender.conf.update(task_ignore_result=True, **doorbell.celery_settings(self._settings))
        made: doorbell.Sender = sender
        return made


def _doorbell_for(job: Job) -> str | None:
    if job.state == JobState.QUEUED:
        return doorbell.INFERENCE
    if job.state == JobState.PREPARING:
        return doorbell.SERVICE
    return doorbell.EVENTS if job.state in TERMINAL and job.webhook_url is not None else None
