"""The doorbell: wakes every worker of a queue with a message of Celery, which never says what to do."""

from typing import Final, Protocol

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
# A process sends its rings at least this far apart, so that a flood of submissions costs each worker some
# thirty ticks a second. A ring that waits for this still wakes a worker within 60 ms.
PAUSE_SECONDS: Final = 0.03


class Sender(Protocol):
    """A Celery application, configured with `celery_settings`."""

    def send_task(self, name: str, *, queue: str, ignore_result: bool, retry: bool) -> object:
        """Send the task without arguments; may raise, as nothing depends on it."""


def celery_settings(settings: BrokerSettings) -> dict[str, object]:
    """Return the Celery settings of the queues, and those that bound how long a ring waits for its broker."""
    seconds = settings.socket_timeout_seconds
    return {
        # Every worker of a queue receives each message, and one without a receiver is dropped: no message
        # waits for a dead worker, and nothing needs to be acknowledged.
        "task_queues": {
            queue: {"exchange": f"longbatch.{queue}", "exchange_type": "fanout", "no_ack": True}
            for queue in (INFERENCE, SERVICE)
        },
        "broker_connection_timeout": seconds,
        "broker_pool_limit": 1,
        # Without these a ring would wait for an unreachable broker, and block forever on a frozen one.
        "broker_transport_options": {
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "max_retries": 0,
        },
    }


def ring(sender: Sender, doorbell: str) -> bool:
    """Wake the workers of this doorbell's queue.

    Never raises: workers also poll on their own every second or two.

    Returns:
        False if the broker cannot be reached.
    """
    try:
        sender.send_task(WAKE_TASKS[doorbell], queue=QUEUES[doorbell], ignore_result=True, retry=False)
    except Exception:  # noqa: BLE001  # Celery raises errors of its libraries; a ring may always be lost
        return False
    return True


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
