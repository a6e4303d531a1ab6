"""The doorbell: wakes workers and never says what to do, through Redis itself or as a Celery message."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, Self, cast

import redis

from jobs.settings import BrokerSettings

# Queues, each with the doorbell of its name.
INFERENCE = "inference"
SERVICE = "service"
# A separate doorbell in the service workers' queue, as every job's end rings it: events wait for delivery.
EVENTS = "events"
# Another of theirs: perhaps the last line of a batch has ended.
BATCHES = "batches"
QUEUES = {INFERENCE: INFERENCE, SERVICE: SERVICE, EVENTS: SERVICE, BATCHES: SERVICE}
# Task names by doorbell; a worker registers those of its queue, any process may send them.
WAKE_TASKS = {doorbell: f"longbatch.wake_{doorbell}" for doorbell in QUEUES}
# Workers that wait in Redis itself hear a ring at once; through Celery it takes 20 ms more. Each ring goes to
# one of them, the one that has waited longest.
_LISTENS_FOR = timedelta(seconds=5)
_MAX_UNHEARD = 10
# A ring that is passed on comes back to the worker that began it, unless that has gone.
_MAX_HOPS = 32
# While a message of Celery is pending, more add nothing. Short: a lost one must not mute the doorbell.
RING_INTERVAL = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring that a worker heard.

    Attributes:
        name: of the doorbell.
        begun_by: the name that the worker gave it which passed it on first; empty: none has.
        num_hops: how often it was passed on.
    """

    name: str
    begun_by: str = ""
    num_hops: int = 0

    @classmethod
    def parse(cls, message: str) -> Self:
        """Parse what waits in Redis."""
        name, _, rest = message.partition(" ")
        begun_by, _, num_hops = rest.partition(" ")
        return cls(name, begun_by, int(num_hops or 0))

    @property
    def message(self) -> str:
        """What waits in Redis."""
        return f"{self.name} {self.begun_by} {self.num_hops}" if self.begun_by else self.name

    def passed_on(self, by: str) -> "Ring | None":
        """Return the same ring for the next worker; None: it has been everywhere."""
        if self.num_hops >= _MAX_HOPS:
            return None
        return Ring(self.name, self.begun_by or by, self.num_hops + 1)


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
        False if Celery's message is already pending or the broker cannot be reached.
    """
    try:
        is_heard = bool(broker.eval(*ringing(doorbell)))
    except (redis.RedisError, OSError):
        return False
    return is_heard or ring_by_celery(broker, sender, doorbell)


def ring_by_celery(broker: redis.Redis, sender: Sender, doorbell: str) -> bool:
    """Wake a worker that consumes Celery's queue. Never raises; returns what `ring` does."""
    try:
        if not broker.set(_key(doorbell), b"1", nx=True, px=RING_INTERVAL):
            return False
        sender.send_task(WAKE_TASKS[doorbell], queue=QUEUES[doorbell], ignore_result=True, retry=False)
    except Exception:  # noqa: BLE001  # Celery raises errors of its libraries; a ring may always be lost
        return False
    return True


def ringing(doorbell: str) -> tuple[str, int, str, str, str, int]:
    """Return the script, with its keys and arguments, that rings if a worker listens, and tells whether."""
    queue = QUEUES[doorbell]
    keys = (_listening_key(queue), _bell_key(queue))
    return (_RING_IF_HEARD, len(keys), *keys, Ring(doorbell).message, _MAX_UNHEARD - 1)


# One round trip: every submission waits for it before a worker hears of it.
_RING_IF_HEARD: Final = """
    if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
    redis.call('LPUSH', KEYS[2], ARGV[1])
    redis.call('LTRIM', KEYS[2], 0, ARGV[2])
    return 1
"""


def hear(broker: redis.Redis, queue: str, *, seconds: float) -> Ring | None:
    """Wait for a ring of the queue's doorbells.

    Args:
        broker: a client whose socket waits for longer than `seconds`.
        queue: of the worker.
        seconds: how long to wait.

    Returns:
        None: there was none.
    """
    pipeline = broker.pipeline(transaction=False)  # one round trip, and no ring is missed between the two
    pipeline.set(_listening_key(queue), b"1", px=_LISTENS_FOR)
    pipeline.blpop([_bell_key(queue)], timeout=seconds)
    heard = cast("tuple[bytes, bytes] | None", pipeline.execute()[1])
    return Ring.parse(heard[1].decode()) if heard else None


def pass_on(broker: redis.Redis, ring: Ring) -> None:
    """Ring again for another worker, as this one stops or cannot take the work."""
    with suppress(redis.RedisError, OSError):
        _ring_bell(broker, ring)


def acknowledge(broker: redis.Redis, doorbell: str) -> None:
    """Clear the pending message of Celery, so that the next one is sent again."""
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


def _ring_bell(broker: redis.Redis, ring: Ring) -> None:
    key = _bell_key(QUEUES[ring.name])
    pipeline = broker.pipeline(transaction=False)
    pipeline.lpush(key, ring.message)
    pipeline.ltrim(key, 0, _MAX_UNHEARD - 1)
    pipeline.execute()


def _bell_key(queue: str) -> str:
    return f"longbatch:bell:{queue}"


def _listening_key(queue: str) -> str:
    return f"longbatch:bell:{queue}:listening"


def _key(doorbell: str) -> str:
    return f"longbatch:doorbell:{doorbell}"
