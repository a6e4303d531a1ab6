"""The doorbell: a Celery message without payload that says when to look, never what to do."""

from datetime import timedelta
from typing import Protocol

import redis

# Queues, each with the bell of its name.
INFERENCE = "inference"
SERVICE = "service"
# A bell of its own in the service workers' queue, as every job's end rings it: events wait to be told.
EVENTS = "events"
QUEUES = {INFERENCE: INFERENCE, SERVICE: SERVICE, EVENTS: SERVICE}
# Task names by bell; the worker registers those of its queue, everybody may send them.
WAKE_TASKS = {bell: f"longbatch.wake_{bell}" for bell in QUEUES}
# While one ring waits, more say nothing new. Short, because a lost message must not mute the bell.
RING_INTERVAL = timedelta(seconds=1)


class Publish(Protocol):
    """Sends a task by name to a queue, without arguments."""

    def __call__(self, task: str, queue: str) -> object:
        """Send it; may raise, nothing depends on it."""


def ring(broker: redis.Redis, publish: Publish, bell: str) -> bool:
    """Whom this bell calls will look soon; False: a ring waits already, or the broker cannot be reached.

    Never raises: workers also look on their own every second or two.
    """
    try:
        if not broker.set(_key(bell), b"1", nx=True, px=RING_INTERVAL):
            return False
        publish(WAKE_TASKS[bell], QUEUES[bell])
    except Exception:  # noqa: BLE001  # the publisher's library raises its own kinds; a ring may always be lost
        return False
    return True


def heard(broker: redis.Redis, bell: str) -> None:
    """The ring was heard; the next one sounds again."""
    try:
        broker.delete(_key(bell))
    except (redis.RedisError, OSError):
        return


def answers(broker: redis.Redis) -> bool:
    """Whether the broker answers within its socket timeout."""
    try:
        return bool(broker.ping())
    except (redis.RedisError, OSError):
        return False


def connect(url: str, *, socket_timeout: float) -> redis.Redis:
    """A client that gives up on a frozen broker after `socket_timeout` seconds."""
    return redis.Redis.from_url(
        url, socket_timeout=socket_timeout, socket_connect_timeout=socket_timeout, retry=None
    )


def _key(bell: str) -> str:
    return f"longbatch:doorbell:{bell}"
