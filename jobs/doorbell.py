"""The doorbell: a Celery message without payload that wakes workers and never says what to do."""

from contextlib import suppress
from datetime import timedelta
from typing import Protocol, cast

import redis

from jobs.settings import BrokerSettings

# Queues, each with the doorbell of its name.
INFERENCE = "inference"
SERVICE = "service"
# A separate doorbell in the service workers' queue, as every job's end rings it: events wait for delivery.
EVENTS = "events"
QUEUES = {INFERENCE: INFERENCE, SERVICE: SERVICE, EVENTS: SERVICE}
# Task names by doorbell; a worker registers those of its queue, any process may send them.
WAKE_TASKS = {doorbell: f"longbatch.wake_{doorbell}" for doorbell in QUEUES}
# Workers that wait in Redis itself hear a ring at once; through Celery it takes 20 ms more. Each ring goes to
# one of them, the one that has waited longest.
_LISTENS_FOR = timedelta(seconds=5)
_MAX_UNHEARD = 10
# While one ring is pending, more add nothing. Short, because a lost message must not mute the doorbell.
RING_INTERVAL = timedelta(seconds=1)


class Sender(Protocol):
    """A Celery application, configured with `celery_settings`."""

    def send_task(self, name: str, *, queue: str, ignore_result: bool, retry: bool) -> object:
        """Send the task without arguments; may raise, as nothing depends on it."""


def celery_settings(settings: BrokerSettings) -> dict[str, object]:
    """Return the Celery settings that bound how long a ring waits for its broker."""
    seconds = settings.socket_timeout_seconds
    return {
        "broker_connection_timeout": seconds,
        "broker_pool_limit": 1,
        # Without these a ring would wait for an unreachable broker, and block forever on a frozen one.
        "broker_transport_options": {
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "max_retries": 0,
        },
    }


def ring(broker: redis.Redis, sender: Sender, doorbell: str) -> bool:
    """Wake a worker that listens to this doorbell; if none does, one that consumes Celery's queue.

    Never raises: workers also poll on their own every second or two.

    Returns:
        False if a ring is already pending or the broker cannot be reached.
    """
    try:
        if not broker.set(_key(doorbell), b"1", nx=True, px=RING_INTERVAL):
            return False
        if broker.exists(_listening_key(QUEUES[doorbell])):
            _ring_bell(broker, doorbell)
        else:
            sender.send_task(WAKE_TASKS[doorbell], queue=QUEUES[doorbell], ignore_result=True, retry=False)
    except Exception:  # noqa: BLE001  # Celery raises errors of its libraries; a ring may always be lost
        return False
    return True


def hear(broker: redis.Redis, queue: str, *, seconds: float) -> str | None:
    """Wait for a ring of the queue's doorbells, and return the doorbell's name.

    Args:
        broker: a client whose socket waits for longer than `seconds`.
        queue: of the worker.
        seconds: how long to wait.

    Returns:
        None: there was none.
    """
    broker.set(_listening_key(queue), b"1", px=_LISTENS_FOR)
    heard = cast("tuple[bytes, bytes] | None", broker.blpop([_bell_key(queue)], timeout=seconds))
    return heard[1].decode() if heard else None


def pass_on(broker: redis.Redis, doorbell: str) -> None:
    """Ring again for another worker, as this one stops."""
    with suppress(redis.RedisError, OSError):
        _ring_bell(broker, doorbell)


def acknowledge(broker: redis.Redis, doorbell: str) -> None:
    """Clear the pending ring, so that the next one is sent again."""
    try:
        broker.delete(_key(doorbell))
    except (redis.RedisError, OSError):
        return


def is_reachable(broker: redis.Redis) -> bool:
    """Return True if the broker answers within its socket timeout."""
    try:
        return bool(broker.ping())
    except (redis.RedisError, OSError):
        return False


def connect(url: str, *, socket_timeout: float) -> redis.Redis:
    """Connect with a client that gives up on a frozen broker after `socket_timeout`.

    Args:
        url: of the broker.
        socket_timeout: in seconds.
    """
    return redis.Redis.from_url(
        url, socket_timeout=socket_timeout, socket_connect_timeout=socket_timeout, retry=None
    )


def _ring_bell(broker: redis.Redis, doorbell: str) -> None:
    key = _bell_key(QUEUES[doorbell])
    pipeline = broker.pipeline(transaction=False)
    pipeline.lpush(key, doorbell)
    pipeline.ltrim(key, 0, _MAX_UNHEARD - 1)
    pipeline.execute()


def _bell_key(queue: str) -> str:
    return f"longbatch:bell:{queue}"


def _listening_key(queue: str) -> str:
    return f"longbatch:bell:{queue}:listening"


def _key(doorbell: str) -> str:
    return f"longbatch:doorbell:{doorbell}"
