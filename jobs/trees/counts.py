"""Counts of a tree's ends, kept in its summary's row, so that looking at a large tree reads few of its jobs.

The transaction that ends a job of a tree holds the summary's row and adds to its counts. Jobs that began and
have not ended are not in them: an index has these (`ix_jobs_tree_noted`).
A summary that a release before planned has no counts until it ends; then its tree is counted whole.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Uuid, and_, any_, case, cast, func, literal_column, or_, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session
from sqlalchemy.sql.selectable import ScalarSelect

from jobs.models import Job, Summary, SummaryNode
from jobs.states import TERMINAL, JobState

_FAILED: Final = sorted(TERMINAL - {JobState.COMPLETED})


@dataclass(frozen=True, slots=True)
class TreeEnds:
    """What has ended of a tree. `Summary` has the same columns, and describes them."""

    num_completed: int = 0
    num_failed: int = 0
    ended_tokens: int = 0
    used_prompt_tokens: int = 0
    used_cached_tokens: int = 0
    used_completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TreeCounts:
    """How far a tree is, and what it has used.

    Attributes:
        num_jobs: nodes of the tree.
        num_completed, num_failed: of them, by their present jobs.
        num_running: jobs that run now.
        ended_tokens, planned_tokens: of their prompts, by the plan: of nodes that have ended, and of all.
        prompt_tokens, cached_tokens, completion_tokens: of all jobs that began, replaced ones included.
    """

    num_jobs: int = 0
    num_completed: int = 0
    num_failed: int = 0
    num_running: int = 0
    ended_tokens: int = 0
    planned_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Begun:
    """Jobs of a tree that began and have not ended."""

    num_running: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


def begin(summary: Summary) -> None:
    """Count the ends of the tree from now on: it is planned, and none of its jobs has ended."""
    _store(summary, TreeEnds())


def note(summary: Summary, job: Job, node: SummaryNode | None) -> None:
    """Count the end of this job; the caller holds the summary's row.

    Args:
        summary: read since its row is held.
        job: of its tree.
        node: whose work ends with the job; None: another job takes its place, or took it.
    """
    if summary.num_completed is None:
        return
    if job.started_at is not None:
        summary.used_prompt_tokens += job.prompt_tokens or 0
    summary.used_cached_tokens += job.cached_tokens or 0
    summary.used_completion_tokens += job.completion_tokens
    if node is not None:
        is_complete = job.state == JobState.COMPLETED
        summary.num_completed += is_complete
        summary.num_failed += not is_complete
        summary.ended_tokens += node.tokens


def note_blocked(session: Session, summary: Summary, job_ids: Collection[UUID]) -> None:
    """Count the ends of nodes' jobs that waited for others, and so used nothing; the caller holds the row."""
    if summary.num_completed is not None and job_ids:
        tokens = select(func.sum(SummaryNode.tokens)).where(
            SummaryNode.summary_id == summary.id,
            SummaryNode.job_id == any_(cast(list(job_ids), ARRAY(Uuid))),
        )
        summary.num_failed += len(job_ids)
        summary.ended_tokens += int(session.scalar(tokens) or 0)


def complete(session: Session, summary: Summary) -> None:
    """Count the whole tree of a summary that ends, unless all its ends are counted."""
    if summary.plan is None:
        return
    num_ended = (summary.num_completed or 0) + summary.num_failed
    if summary.num_completed is None or num_ended != summary.plan["jobs"]:
        session.flush()
        _store(summary, _count(session, [summary.id]).get(summary.id, TreeEnds()))


def read(session: Session, summaries: Iterable[Summary]) -> dict[UUID, TreeCounts]:
    """Return the counts of those of these summaries that are planned."""
    planned = {each.id: each for each in summaries if each.plan is not None}
    ends = {each.id: _stored(each) for each in planned.values() if each.num_completed is not None}
    ends |= _count(session, [each for each in planned if each not in ends])
    # Nothing of a tree is begun once all of it has ended.
    are_left = [
        each.id
        for each in planned.values()
        if each.id not in ends or ends[each.id].num_completed + ends[each.id].num_failed != _jobs_of(each)
    ]
    begun = _read_begun(session, are_left)
    return {
        each.id: _add(each, ends.get(each.id, TreeEnds()), begun.get(each.id, _Begun()))
        for each in planned.values()
    }


def num_running() -> ScalarSelect[int]:
    """Count the running jobs of each summary, as a column of a query of summaries."""
    mine = select(func.count()).where(Job.summary_id == Summary.id, noted(), Job.state == "running")
    return mine.correlate(Summary).scalar_subquery()


def noted() -> ColumnElement[bool]:
    """Match jobs of trees that began and have not ended, or ended without completing: an index has them."""
    return and_(
        Job.summary_id.is_not(None),
        Job.state != literal_column("'completed'"),
        or_(Job.started_at.is_not(None), Job.finalized_at.is_not(None)),
    )


def _add(summary: Summary, ends: TreeEnds, begun: _Begun) -> TreeCounts:
    planned = (summary.plan or {}).get("prompt_tokens")
    return TreeCounts(
        num_jobs=_jobs_of(summary),
        num_completed=ends.num_completed,
        num_failed=ends.num_failed,
        num_running=begun.num_running,
        ended_tokens=ends.ended_tokens,
        planned_tokens=planned if isinstance(planned, int) else 0,
        prompt_tokens=ends.used_prompt_tokens + begun.prompt_tokens,
        cached_tokens=ends.used_cached_tokens + begun.cached_tokens,
        completion_tokens=ends.used_completion_tokens + begun.completion_tokens,
    )


def _jobs_of(summary: Summary) -> int:
    planned = (summary.plan or {}).get("jobs")
    return planned if isinstance(planned, int) else 0


def _stored(summary: Summary) -> TreeEnds:
    return TreeEnds(**{each.name: getattr(summary, each.name) for each in fields(TreeEnds)})


def _store(summary: Summary, ends: TreeEnds) -> None:
    for each in fields(TreeEnds):
        setattr(summary, each.name, getattr(ends, each.name))


def _count(session: Session, summary_ids: Sequence[UUID]) -> dict[UUID, TreeEnds]:
    """Count what has ended of these trees, job by job."""
    if not summary_ids:
        return {}
    has_begun = Job.started_at.is_not(None)
    used = (
        select(
            Job.summary_id,
            func.sum(case((has_begun, Job.prompt_tokens), else_=0)).label("prompt"),
            func.sum(Job.cached_tokens).label("cached"),
            func.sum(Job.completion_tokens).label("completion"),
        )
        .where(Job.summary_id.in_(summary_ids), Job.finalized_at.is_not(None))
        .group_by(Job.summary_id)
        .subquery()
    )
    nodes = (
        select(
            SummaryNode.summary_id,
            func.count().filter(Job.state == "completed").label("completed"),
            func.count().filter(Job.state.in_(_FAILED)).label("failed"),
            func.sum(SummaryNode.tokens).label("tokens"),
        )
        .join(Job, Job.id == SummaryNode.job_id)
        .where(SummaryNode.summary_id.in_(summary_ids), Job.finalized_at.is_not(None))
        .group_by(SummaryNode.summary_id)
        .subquery()
    )
    # A node whose job was replaced may have no ended one.
    rows = session.execute(select(used, nodes).outerjoin(nodes, nodes.c.summary_id == used.c.summary_id))
    return {
        row[0]: TreeEnds(
            num_completed=row.completed or 0,
            num_failed=row.failed or 0,
            ended_tokens=int(row.tokens or 0),
            used_prompt_tokens=int(row.prompt or 0),
            used_cached_tokens=int(row.cached or 0),
            used_completion_tokens=int(row.completion or 0),
        )
        for row in rows
    }


def _read_begun(session: Session, summary_ids: Sequence[UUID]) -> dict[UUID, _Begun]:
    if not summary_ids:
        return {}
    # In the aggregates: as a condition it leads the planner to an index of all unfinished jobs.
    is_left = Job.finalized_at.is_(None)
    rows = session.execute(
        select(
            Job.summary_id,
            func.count().filter(Job.state == "running").label("running"),
            func.sum(Job.prompt_tokens).filter(is_left).label("prompt"),
            func.sum(Job.cached_tokens).filter(is_left).label("cached"),
            func.sum(Job.completion_tokens).filter(is_left).label("completion"),
        )
        .where(Job.summary_id.in_(summary_ids), noted())
        .group_by(Job.summary_id)
    )
    return {
        row.summary_id: _Begun(
            row.running, int(row.prompt or 0), int(row.cached or 0), int(row.completion or 0)
        )
        for row in rows
        if row.summary_id is not None
    }
