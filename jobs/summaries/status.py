"""The parts of a summary that change while it runs, for those who follow it."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.models import Summary
from jobs.trees import counts as tree_counts
from jobs.trees.counts import TreeCounts


@dataclass(frozen=True, slots=True)
class SummaryStatus:
    """The parts of a summary that change while it runs."""

    state: str
    stop_reason: str | None
    num_jobs: int
    num_ended: int
    num_running: int


def read_status(session: Session, summary_ids: Sequence[UUID]) -> dict[UUID, SummaryStatus]:
    """Read the changing parts of these summaries, of any tenant; skip deleted rows."""
    query = select(Summary, tree_counts.num_running()).where(Summary.id.in_(summary_ids))
    rows = session.execute(query.execution_options(populate_existing=True)).all()
    counts = tree_counts.read(session, [row for row, _ in rows if row.num_completed is None])
    return {row.id: _status(row, num_running, counts.get(row.id)) for row, num_running in rows}


def _status(row: Summary, num_running: int, counts: TreeCounts | None) -> SummaryStatus:
    """Describe the summary; `counts` of one whose ends are not counted."""
    planned = (row.plan or {}).get("jobs")
    num_ended = (
        counts.num_completed + counts.num_failed if counts else (row.num_completed or 0) + row.num_failed
    )
    return SummaryStatus(
        row.state,
        row.stop_reason,
        num_jobs=planned if isinstance(planned, int) else 0,
        num_ended=num_ended,
        num_running=num_running,
    )
