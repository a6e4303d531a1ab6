"""What callers are told of a job that waits: its place, what it waits for, and about when it starts."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class WaitReason(StrEnum):
    """What a job waits for; exactly one holds, the first that applies."""

    DEPENDENCY = "dependency"  # jobs that it depends on
    PREPARING = "preparing"  # its tokens are being counted
    RETRY_BACKOFF = "retry_backoff"  # an attempt failed; the next is made later
    ENGINE_DOWN = "engine_down"  # no engine that could hold it takes jobs now
    NO_ENGINE_FITS = "no_engine_fits"  # no engine of its model is large enough
    RESERVATION = "reservation"  # there is room, but it is kept for a job with a better right to it
    SLOTS = "slots"  # it is next, and all batch slots are taken
    BLOCKS = "blocks"  # it is next or ranks first, and too few KV-cache blocks are free
    ALONE = "alone"  # it is next or ranks first, and runs only on an idle engine, having lost several workers
    BEHIND = "behind"  # others go first


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """What is known of a job that waits.

    Attributes:
        position: 1 is next; None: it is not in line.
        reason: None: nothing holds it back.
        estimated_start_at: None: nothing can be said.
    """

    position: int | None = None
    reason: WaitReason | None = None
    estimated_start_at: datetime | None = None
