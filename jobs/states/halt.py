"""What keeps an engine, or a tenant's queue, from starting jobs by an operator's order."""

from enum import StrEnum


class HaltKind(StrEnum):
    """What the operator ordered; neither starts a job, and running ones go on."""

    PAUSE = "pause"
    DRAIN = "drain"  # the operator wants to know when nothing runs any more


class HaltState(StrEnum):
    """What has become of the order."""

    RUNNING = "running"  # there is none: jobs start
    PAUSED = "paused"
    DRAINING = "draining"  # jobs that started before still run
    DRAINED = "drained"  # nothing runs


def state_of(kind: HaltKind | None, *, num_running: int) -> HaltState:
    """Tell what became of an order.

    Args:
        kind: what was ordered; None: nothing.
        num_running: jobs that run under it; for an engine its reservations, draining ones included.
    """
    if kind is None:
        return HaltState.RUNNING
    if kind is HaltKind.PAUSE:
        return HaltState.PAUSED
    return HaltState.DRAINING if num_running else HaltState.DRAINED
