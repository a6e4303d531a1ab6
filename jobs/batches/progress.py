"""How far running batches are, how fast they go, and when they will have ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row, Select, case, func, literal_column, select
from sqlalchemy.orm import Session

from jobs.models import Job
from jobs.models.batch import Batch
from jobs.states.batch import BatchState

# What counts as now: long enough to even out jobs that end together, short enough to follow a paused engine.
_LATELY: Final = timedelta(minutes=5)
# Newest ended jobs that are looked at, of all tenants: some 10 ms of the database's time.
_WINDOW: Final = 2000
# Fewer tell less than the average since the batch began.
_ENOUGH: Final = 5
_LEAST: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What changes of a batch while it runs.

    Attributes:
        error_counts: lines of the error file by code, most frequent first.
        lines_per_minute: over the last minutes, otherwise since it began, to two digits. None: it does not
            run, or no line has ended.
        ends_at: when its last line ends if it goes on like this, to the minute. None as above.
    """

    state: str
    num_lines: int
    num_completed: int
    num_failed: int
    num_stopped: int
    error_counts: tuple[tuple[str, int], ...]
    lines_per_minute: float | None
    ends_at: datetime | None

    @property
    def num_ended(self) -> int:
        """Lines that need no more work."""
        return self.num_completed + self.num_failed + self.num_stopped

    @property
    def num_uncounted(self) -> int:
        """Lines that did not complete and are not in `error_counts`."""
        return self.num_failed + self.num_stopped - sum(number for _, number in self.error_counts)


def read_progress(
    session: Session, batch_ids: Sequence[UUID], *, window: int = _WINDOW
) -> Mapping[UUID, BatchProgress]:
    """Read these fields of many batches of any tenant in one query; omits batches that do not exist."""
    return {row.id: _progress(row) for row in session.execute(_query(batch_ids, window=window))}


def _query(batch_ids: Sequence[UUID], *, window: int) -> Select[*tuple[Any, ...]]:
    now = func.now()  # stable within the statement, so that the index is used
    lately = (
        select(Job.batch_id, Job.finalized_at)
        .where(Job.finalized_at >= now - _LATELY, Job.choice == 0)
        .order_by(Job.finalized_at.desc())
        .limit(window)
        .cte("lately")
    )
    of_batch = select(func.count()).where(lately.c.batch_id == Batch.id).scalar_subquery()
    is_full = select(func.count() == window).select_from(lately).scalar_subquery()
    first = select(func.min(lately.c.finalized_at)).scalar_subquery()
    runs = Batch.state == BatchState.IN_PROGRESS.value
    return select(
        Batch.id,
        Batch.state,
        Batch.num_lines,
        Batch.num_completed,
        Batch.num_failed,
        Batch.num_stopped,
        Batch.error_counts,
        Batch.in_progress_at,
        literal_column("now()").label("now"),
        # Only for batches that run: Postgres makes the window when it is first asked for.
        case((runs, of_batch)).label("num_lately"),
        case((runs, case((is_full, first), else_=now - _LATELY))).label("since"),
    ).where(Batch.id.in_(batch_ids))


def _progress(row: Row[*tuple[Any, ...]]) -> BatchProgress:
    num_ended = row.num_completed + row.num_failed + row.num_stopped
    rate = _lines_per_second(row, num_ended=num_ended)
    ends_at = None
    if rate:
        ends_at = row.now + timedelta(seconds=(row.num_lines - num_ended) / rate)
        ends_at = ends_at.replace(second=0, microsecond=0) + _MINUTE
    return BatchProgress(
        state=row.state,
        num_lines=row.num_lines,
        num_completed=row.num_completed,
        num_failed=row.num_failed,
        num_stopped=row.num_stopped,
        error_counts=tuple(sorted(row.error_counts.items(), key=lambda each: (-each[1], each[0]))),
        lines_per_minute=float(f"{rate * 60:.2g}") if rate else None,
        ends_at=ends_at,
    )


def _lines_per_second(row: Row[*tuple[Any, ...]], *, num_ended: int) -> float | None:
    if row.state != BatchState.IN_PROGRESS or not num_ended:
        return None
    began = row.in_progress_at
    if row.num_lately >= _ENOUGH:
        since, number = max(began, row.since), row.num_lately
    else:
        since, number = began, num_ended
    return float(number / (max(_LEAST, row.now - since) / timedelta(seconds=1)))
