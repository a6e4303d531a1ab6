"""What has ended and has a trace: taken once each to be written, and given back if the collector is away."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, text, update
from sqlalchemy.orm import Session

from jobs import telemetry
from jobs.models import Attempt, Batch, Job, Summary
from jobs.models.batch import UNTRACED_BATCH
from jobs.models.job import UNTRACED
from jobs.traces import subjects
from jobs.traces.job_spans import TracedRun, spans_of
from jobs.traces.span import Span

# Of each kind in one round: some hundred spans of ordinary jobs.
MAX_ROWS: Final = 100
# What has not been written so long after its end is given up.
MAX_AGE: Final = timedelta(hours=1)

Row = type[Job | Summary | Batch]


@dataclass(frozen=True, slots=True)
class Taken:
    """What one round writes.

    Attributes:
        row_ids: of the rows that it took, by table.
        spans: of all of them.
        is_full: there may be more.
    """

    row_ids: dict[Row, Sequence[UUID]] = field(default_factory=dict)
    spans: Sequence[Span] = ()
    is_full: bool = False


def take(session: Session, *, limit: int = MAX_ROWS) -> Taken:
    """Take what has ended and has a trace, so that no other process writes it.

    Args:
        session: the caller's transaction.
        limit: of each kind. Below `MAX_ROWS`, they are any: one that no collector takes is not always first.
    """
    jobs = _take_rows(session, Job, UNTRACED, limit=limit)
    summaries = _take_rows(session, Summary, UNTRACED, limit=limit)
    batches = _take_rows(session, Batch, UNTRACED_BATCH, limit=limit)
    runs = _runs_of(session, [job.id for job in jobs])
    spans = [
        *_all_spans(jobs, lambda job: spans_of(job, runs[job.id])),
        *_all_spans(summaries, subjects.spans_of_summary),
        *_all_spans(batches, subjects.spans_of_batch),
    ]
    found: dict[Row, Sequence[Any]] = {Job: jobs, Summary: summaries, Batch: batches}
    row_ids: dict[Row, Sequence[UUID]] = {
        table: [row.id for row in rows] for table, rows in found.items() if rows
    }
    return Taken(row_ids, spans, is_full=any(len(rows) == limit for rows in found.values()))


def give_back(session: Session, taken: Taken) -> None:
    """Leave these to a later round, as the collector does not have them; old ones are given up."""
    for table, row_ids in taken.row_ids.items():
        is_new = _ended_at(table) > func.clock_timestamp() - MAX_AGE
        rows = update(table).where(table.id.in_(row_ids), is_new).values(traced_at=None)
        session.execute(rows, execution_options={"synchronize_session": False})


def _take_rows(session: Session, table: Row, untraced: str, *, limit: int) -> Sequence[Any]:
    order = table.id if limit >= MAX_ROWS else func.random()
    free = select(table.id).where(text(untraced)).order_by(order).limit(limit)
    row_ids = session.scalars(free.with_for_update(skip_locked=True, key_share=True)).all()
    if not row_ids:
        return []
    taken = update(table).where(table.id.in_(row_ids)).values(traced_at=func.clock_timestamp())
    return session.scalars(
        taken.returning(table), execution_options={"synchronize_session": False, "populate_existing": True}
    ).all()


def _ended_at(table: Row) -> ColumnElement[Any]:
    if table is Batch:
        return func.coalesce(Batch.completed_at, Batch.failed_at, Batch.expired_at, Batch.cancelled_at)
    return table.__table__.c.finalized_at


def _is_old(row: Job | Summary | Batch) -> bool:
    ended_at = getattr(row, f"{row.state}_at") if isinstance(row, Batch) else row.finalized_at
    return bool(ended_at and row.traced_at and row.traced_at - ended_at > MAX_AGE)


def _runs_of(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, list[TracedRun]]:
    found: dict[UUID, list[TracedRun]] = defaultdict(list)
    if not job_ids:
        return found
    columns = [getattr(Attempt, name) for name in TracedRun._fields]
    rows = session.execute(select(*columns).where(Attempt.job_id.in_(job_ids)).order_by(Attempt.lease_id))
    for row in rows:
        found[row.job_id].append(TracedRun(*row))
    return found


def _all_spans(rows: Sequence[Any], tell: Callable[[Any], Iterable[Span]]) -> list[Span]:
    """List the spans of rows, but of old ones: nobody looks for them, and there may be a month of them.

    A row that cannot be told has none, so that it harms no other.
    """
    found: list[Span] = []
    for row in rows:
        try:
            found += [] if _is_old(row) else list(tell(row))
        except Exception as error:  # noqa: BLE001  # see above
            telemetry.log_failure(telemetry.ROW_FAILED, error, loop="traces", row_id=str(row.id))
    return found
