"""The packing of an engine as a picture: time to the right, slots and KV blocks, each job a bar.

All figures are places in a box of 1000 by 100; the page stretches it. Nothing in it is text of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Final
from uuid import UUID

from api.console import formats
from api.console.engines.activity import Bar, EngineActivity
from api.console.engines.plan import NextJob, Plan
from api.console.engines.shelves import Item, Piece, Shelf
from jobs import ids

# Three parts of the width are past, one is to come.
SPANS: Final[Mapping[str, tuple[str, timedelta]]] = {
    "minute": ("a minute", timedelta(minutes=1)),
    "quarter": ("15 minutes", timedelta(minutes=15)),
    "hour": ("an hour", timedelta(hours=1)),
    "day": ("6 hours", timedelta(hours=6)),
}
_PAST: Final = 750.0
_WIDTH: Final = 1000.0
_HEIGHT: Final = 100.0
_THINNEST: Final = 1.0


@dataclass(frozen=True, slots=True)
class Box:
    """A bar, or a part of one, in the picture.

    Attributes:
        kind: a word or two of style.
        words: what it is.
        job_id: the job's page; None: it is another tenant's.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    words: str
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn.

    Attributes:
        slots: boxes in the lanes of slots.
        blocks: boxes in the pool of blocks.
        limit: how high the pool is drawn; jobs that share blocks, or grew, may reach above it.
        ticks: of the axis of time, at each quarter of the width, and at its end.
    """

    slots: Sequence[Box]
    blocks: Sequence[Box]
    limit: float
    ticks: Sequence[str]


@dataclass(slots=True)
class Shelves:
    """Where the bars of one engine lie; kept, so that none jumps from one picture to the next."""

    slots: Shelf
    blocks: Shelf

    @classmethod
    def of(cls, engine: EngineActivity) -> "Shelves":
        """Make empty ones for an engine of this size."""
        return cls(Shelf(engine.lanes), Shelf(engine.blocks))

    def fits(self, engine: EngineActivity) -> bool:
        """Return True if the engine has the same size still."""
        return (self.slots.room, self.blocks.room) == (engine.lanes, engine.blocks)


def draw(
    engine: EngineActivity, plan: Plan, shelves: Shelves, *, span: timedelta, own: UUID | None
) -> Picture:
    """Draw what ran in this span, what runs, and what is expected to follow.

    Args:
        engine: as it was a moment ago.
        plan: what is expected.
        shelves: of this engine; changed.
        span: that the past part of the picture covers.
        own: the tenant whose jobs are named; None: all are.
    """
    drawing = _Drawing(engine, plan, span, own)
    real = [_item(bar, inf) for bar in engine.bars]
    for shelf, one_each in ((shelves.slots, True), (shelves.blocks, False)):
        shelf.place([_sized(item, one_each=one_each) for item in real])
    # What is to come finds its place among what runs, if that ends as expected.
    expected = [_item(bar, plan.end_of(bar)) for bar in engine.bars]
    coming = [
        Item(each.job_id, each.starts_at.timestamp(), each.ends_at.timestamp(), each.blocks)
        for each in plan.following
    ]
    every = [*expected, *coming]
    lanes = shelves.slots.copy().place([_sized(item, one_each=True) for item in every])
    pool = shelves.blocks.copy().place(every)
    top = max([engine.blocks, *(sum(pieces[-1]) for pieces in pool.values() if pieces)])
    return Picture(
        slots=list(drawing.boxes(lanes, room=engine.lanes)),
        blocks=list(drawing.boxes(pool, room=top, shows_reading=True)),
        limit=_HEIGHT * (1 - engine.blocks / top),
        ticks=_ticks(span),
    )


@dataclass(frozen=True, slots=True)
class _Drawing:
    engine: EngineActivity
    plan: Plan
    span: timedelta
    own: UUID | None

    @property
    def now(self) -> datetime:
        return self.engine.at

    def boxes(
        self, places: Mapping[UUID, Sequence[Piece]], *, room: int, shows_reading: bool = False
    ) -> Iterator[Box]:
        for bar in self.engine.bars:
            pieces = places.get(bar.lease_id, ())
            start, end = bar.started_at, bar.ended_at or self.now
            kind, words, job_id = self._about(bar)
            if shows_reading and bar.state != "draining":
                until = bar.first_token_at or (start if bar.ended_at else self.now)
                reading = "reading other" if "other" in kind else "reading"
                if until > start or not bar.ended_at:
                    yield from self._boxes(start, until, pieces, room, reading, words, job_id)
                start = until
            if start < end or not shows_reading:
                yield from self._boxes(start, end, pieces, room, kind, words, job_id)
            if not bar.ended_at and bar.job_id in self.plan.ends:
                until = self.plan.ends[bar.job_id]
                yield from self._boxes(self.now, until, pieces, room, "expected", words, job_id)
        for each in self.plan.following:
            pieces = places.get(each.job_id, ())
            about = ("kept" if each.is_kept else "next", self._words_of_next(each), self._shown(each))
            yield from self._boxes(each.starts_at, each.ends_at, pieces, room, *about)

    def _boxes(
        self,
        start: datetime,
        end: datetime,
        pieces: Sequence[Piece],
        room: int,
        kind: str,
        words: str,
        job_id: str | None,
    ) -> Iterator[Box]:
        left, right = max(0.0, self._x(start)), min(_WIDTH, self._x(end))
        if right < 0 or left > _WIDTH:
            return
        for bottom, size in pieces:
            height = _HEIGHT * size / room
            y = _HEIGHT * (1 - (bottom + size) / room)
            yield Box(left, y, max(_THINNEST, right - left), height, kind, words, job_id)

    def _x(self, moment: datetime) -> float:
        return _PAST * (1 + (moment - self.now) / self.span)

    def _about(self, bar: Bar) -> tuple[str, str, str | None]:
        """Return style, words and page of a bar."""
        size = f"{bar.blocks:,} KV blocks"
        if self.own not in (None, bar.tenant_id):
            return "other", f"another tenant's job: {size}", None
        kind = "draining" if bar.state == "draining" else bar.outcome or "running"
        job_id = ids.job_id(bar.job_id)
        words = f"{job_id}: {how_it_is(bar)}, {size}, since {_clock(bar.started_at)}"
        return kind, words, job_id if bar.tenant_id else None

    def _shown(self, each: NextJob) -> str | None:
        return ids.job_id(each.job_id) if self.own in (None, each.tenant_id) else None

    def _words_of_next(self, each: NextJob) -> str:
        whose = self._shown(each) or "another tenant's job"
        return f"{whose}: {each.blocks:,} KV blocks, expected about {_clock(each.starts_at)}"


def how_it_is(bar: Bar) -> str:
    """Say in a word or two how a run is, or ended."""
    if bar.state == "draining":
        return "given up; the engine may still have it"
    if bar.outcome is not None:
        return bar.outcome
    if bar.is_waiting:
        return "waits for more blocks"
    return "generates" if bar.first_token_at else "reads its prompt"


def _item(bar: Bar, expected_end: float) -> Item:
    end = bar.ended_at.timestamp() if bar.ended_at else expected_end
    return Item(bar.lease_id, bar.started_at.timestamp(), end, bar.blocks)


def _sized(item: Item, *, one_each: bool) -> Item:
    return Item(item.key, item.start, item.end, 1) if one_each else item


def _clock(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S UTC")


def _ticks(span: timedelta) -> list[str]:
    part = span / 3
    past = [f"\N{MINUS SIGN}{formats.span(part * number)}" for number in (3, 2, 1)]
    return [*past, "now", f"+{formats.span(part)}"]
