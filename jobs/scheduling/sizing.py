"""What a job books on an engine: its prompt and the output that its peers make likely."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, Self
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.engines.capacity import Capacity
from jobs.scheduling.output_history import History, PeersOnce
from jobs.scheduling.packing import Rules
from jobs.scheduling.prediction import Foresight
from jobs.scheduling.segments import next_segment, whole_blocks
from jobs.settings import Settings

# Prompt tokens that an engine reads in one iteration; only the order of expected ends depends on it.
_CHUNK_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Terms:
    """What a worker claims under.

    Attributes:
        lease: how long without renewal until the job may be rescued.
        max_rescues: a job rescued so often runs alone.
        packing: what may be done to a job that waits.
        foresight: how boldly outputs are predicted; None: every job books its whole `max_tokens`.
        history: what predictions are made from.
        preempts: batch jobs make room for interactive ones; False: ending one early would free nothing.
    """

    lease: timedelta
    max_rescues: int
    packing: Rules = field(default_factory=Rules)
    foresight: Foresight | None = field(default_factory=Foresight)
    history: History = field(default_factory=History)
    preempts: bool = True

    @classmethod
    def of(cls, settings: Settings, *, history: History) -> Self:
        """What workers with these settings claim under."""
        foresight = Foresight(reuses_prefix=settings.engine.reuses_prefix)
        return cls(
            lease=timedelta(seconds=settings.jobs.lease_seconds),
            max_rescues=settings.jobs.max_rescues,
            foresight=foresight if settings.engine.book_predicted else None,
            history=history,
        )


class Bookable(Protocol):
    """What a prediction needs to know of a job; a row of `jobs` says it."""

    @property
    def tenant_id(self) -> UUID:
        """Whose."""

    @property
    def task(self) -> str:
        """What is asked of the model."""

    @property
    def prompt_tokens(self) -> int | None:
        """Counted."""

    @property
    def max_tokens(self) -> int:
        """All that it may generate."""

    @property
    def num_yields(self) -> int:
        """Times it left the engine to let others go on."""


@dataclass(frozen=True, slots=True)
class Booking:
    """Blocks and what they cover.

    Attributes:
        blocks: of the KV cache.
        output_tokens: generated tokens in all, those of earlier runs included.
        steps: engine iterations until the end of the booking.
    """

    blocks: int
    output_tokens: int
    steps: int


@dataclass(slots=True)
class Bookkeeper:
    """Predicts within one transaction; what peers generated is read once for each tenant and task."""

    session: Session
    capacity: Capacity
    terms: Terms
    _peers: PeersOnce = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was read yet."""
        self._peers = PeersOnce(self.session, self.terms.history)

    def booking(self, job: Bookable, *, produced: int) -> Booking:
        """What this job books with so many tokens generated: at least one more, at most all it may need."""
        prompt_tokens, left = job.prompt_tokens or 0, job.max_tokens - produced
        if self.terms.foresight is None or job.num_yields:
            segment = whole_blocks(
                self.capacity, held_tokens=prompt_tokens + produced, new_tokens=left, left=left
            )
        else:
            segment = next_segment(
                self.capacity,
                self._peers.of(job.tenant_id, job.task).near(prompt_tokens),
                prompt_tokens=prompt_tokens,
                produced=produced,
                max_tokens=job.max_tokens,
                rules=self.terms.foresight,
            )
        return Booking(
            blocks=segment.blocks,
            output_tokens=produced + segment.new_tokens,
            steps=steps(prompt_tokens + produced, segment.new_tokens),
        )


def steps(prompt_tokens: int, new_tokens: int) -> int:
    """Engine iterations that reading so much and generating so much takes."""
    return -(-prompt_tokens // _CHUNK_TOKENS) + new_tokens
