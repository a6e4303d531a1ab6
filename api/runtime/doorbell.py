"""Rings doorbells: at once, and so that a frozen broker delays no response."""

import threading
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Final, Self

import redis

from jobs import doorbell, liveness
from jobs.broker_line import BrokerLine
from jobs.models import Job
from jobs.settings import BrokerSettings
from jobs.states import TERMINAL, JobState

# What is submitted so soon after a ring waits for the next: rings one after the other took the interpreter a
# tenth of each submission, and the worker's look, which finds all of it, takes longer.
_PAUSE_SECONDS: Final = 0.005


class Doorbell:
    """Doorbells to ring; several rings of one doorbell count as one.

    The caller's thread sends them, which never waits: one message at a time fits the socket's buffer. A
    thread of its own waits for the answers, connects, and sends through Celery what no worker hears there.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._wanted: set[str] = set()
        self._sent: list[str] = []  # which the thread is busy with
        self._changed = threading.Condition()
        self._closed = False
        self._broker = doorbell.connect(
            settings.url.get_secret_value(), socket_timeout=settings.socket_timeout_seconds
        )
        self._line = BrokerLine(self._broker)
        self._is_on_its_way = False  # what is in `_sent`
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
            if not self._sent:
                self._send()

    def _send(self) -> None:
        """Send what is wanted; the caller holds the lock, and nothing is under way."""
        self._sent, self._wanted = [*self._wanted], set()
        commands = [("EVAL", *doorbell.ringing(name)) for name in self._sent]
        self._is_on_its_way = bool(commands) and self._line.send(commands)
        self._changed.notify()

    def _run(self) -> None:
        self._line.connect()
        while not self._closed:
            with self._changed:
                self._changed.wait_for(lambda: self._sent or self._closed)
            unheard = self._unheard()
            ring = doorbell.ring if unheard is None else doorbell.ring_by_celery
            for name in self._sent if unheard is None else unheard:
                ring(self._broker, self._sender, name)
            time.sleep(_PAUSE_SECONDS)
            self._line.connect()
            with self._changed:
                self._send()

    @cached_property
    def _sender(self) -> doorbell.Sender:
        """Celery's application. It takes 60 ms to load, and is not needed while workers listen."""
        import celery

        sender = celery.Celery(
            "longbatch-api", broker=self._settings.url.get_secret_value(), set_as_current=False
        )
        sender.conf.update(task_ignore_result=True, **doorbell.celery_settings(self._settings))
        made: doorbell.Sender = sender
        return made

    def _unheard(self) -> list[str] | None:
        """Wait for the answers; return the doorbells that no worker listens to. None: they may be lost."""
        if not self._is_on_its_way:
            return None
        try:
            answers = self._line.answers()
        except (redis.RedisError, OSError):
            with self._changed:
                self._line.lose()
            return None
        return [name for name, is_heard in zip(self._sent, answers, strict=True) if not is_heard]


def _doorbell_for(job: Job) -> str | None:
    if job.state == JobState.QUEUED:
        return doorbell.INFERENCE
    if job.state == JobState.PREPARING:
        return doorbell.SERVICE
    return doorbell.EVENTS if job.state in TERMINAL and job.webhook_url is not None else None
