"""How trees of jobs advance: the transaction that ends a job unblocks the jobs that waited for it alone.

A transaction that ends a job of a tree holds that job's row and then locks the summary's. So the ends of one
tree happen one after another, and of two children that end at the same instant, the second sees the first.
Only inference workers, which wait for neither, lock them the other way round (`lock_free`).
Jobs that wait for others (`blocked`) are written only under the summary's row lock, and under it no
transaction waits for any other job's row. So there are no deadlocks, and each parent is unblocked
exactly once.

The rows show what is left to wait for; the summary's counts (`trees.counts`) are for those who look at it. A
process killed at any statement leaves the tree as it was before the end that it was recording.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, and_, exists, literal_column, select
from sqlalchemy.orm import Session

from jobs import finishing, ids, telemetry
from jobs.database import database_now, note_ended
from jobs.finishing import JobEnd
from jobs.job_rows import move, replacement_of
from jobs.models import Job, JsonObject, Summary, SummaryNode
from jobs.states import JobState
from jobs.states.summary import TERMINAL, OnGap, Purpose, SummaryState, SummaryStop
from jobs.trees import counts as tree_counts
from jobs.webhooks import events, outbox

# Errors that another attempt at the same prompt would only repeat.
HOPELESS = frozenset(
    {
        "all_parts_failed",
        "chat_template_error",
        "context_length_exceeded",
        "invalid_prompt",
        "no_visible_text",
        "prompt_uncountable",
        "unsafe_text",
        "unsupported_parameter",
    }
)
_BLOCKED: ColumnElement[str] = literal_column("'blocked'")


def is_waiting() -> ColumnElement[bool]:
    """Match jobs that wait for others of their tree; only the tree changes them."""
    return and_(Job.state == _BLOCKED, Job.summary_id.is_not(None))


def lock(session: Session, jobs: Iterable[Job]) -> dict[UUID, Summary]:
    """Lock the summaries of these jobs, whose rows the caller holds.

    Returns:
        The locked summaries by id.
    """
    summary_ids = {job.summary_id for job in jobs if job.summary_id is not None}
    if not summary_ids:
        return {}
    query = (
        select(Summary)
        .where(Summary.id.in_(summary_ids))
        .order_by(Summary.id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    return {summary.id: summary for summary in session.scalars(query)}


def lock_free(session: Session, summary_ids: Collection[UUID]) -> list[UUID]:
    """Lock those of these summaries that no other transaction holds; wait for none.

    The caller may then end their jobs without waiting, if it does not wait for the jobs' rows either.

    Returns:
        The locked summaries, and those that are gone.
    """
    if not summary_ids:
        return []
    query = select(Summary.id).where(Summary.id.in_(summary_ids)).order_by(Summary.id)
    locked = set(session.scalars(query.with_for_update(key_share=True, skip_locked=True)))
    if len(locked) == len(set(summary_ids)):
        return [*locked]
    held = set(session.scalars(query)) - locked
    return [each for each in set(summary_ids) if each not in held]


def advance(session: Session, ended: Sequence[Job]) -> None:
    """Advance what waited for these jobs, which have just ended.

    Ends a summary with its last job.
    """
    held = lock(session, ended)
    jobs: dict[UUID, list[Job]] = defaultdict(list)
    for job in ended:
        if job.summary_id in held:
            jobs[job.summary_id].append(job)
    for summary_id, summary in held.items():
        _advance(session, summary, jobs[summary_id])
        if summary.state not in TERMINAL:
            _end_if_done(session, summary)


def stop(session: Session, summary: Summary, reason: SummaryStop, *, error: JsonObject | None = None) -> None:
    """End the running summary early; the caller holds its row.

    Ends its jobs that wait for others. The rest end afterwards, in transactions that begin with their rows
    (`lifecycle.cancel_where`). The first reason given decides how the summary ends.
    """
    if summary.stop_reason is None:
        summary.stop_reason = reason
        summary.error = error
        session.flush()
    verb = "expire" if summary.stop_reason == SummaryStop.EXPIRE else "cancel"
    waiting = select(Job.id).where(Job.summary_id == summary.id, Job.state == _BLOCKED)
    waiting = waiting.with_for_update(key_share=True)
    ends = [JobEnd(job_id=each, verb=verb) for each in session.scalars(waiting)]
    ended = finishing.finish(session, ends).followed
    finishing.publish(session, ended)
    tree_counts.note_blocked(session, summary, [job.id for job in ended])
    _end_if_done(session, summary)


def end(session: Session, summary: Summary, state: SummaryState, *, error: JsonObject | None = None) -> None:
    """End the summary, whose row the caller holds, and publish its event."""
    now = database_now(session)
    summary.state, summary.error, summary.finalized_at = state.value, error, now
    summary.lease_id = summary.lease_expires_at = None
    tree_counts.complete(session, summary)
    session.flush()
    note_ended(session, [summary.id])
    outbox.publish(session, [events.summary_ended(summary)])
    telemetry.logger().info(
        telemetry.SUMMARY_ENDED,
        summary_id=ids.summary_id(summary.id),
        purpose=summary.purpose,
        state=summary.state,
        **telemetry.in_trace(summary.traceparent),
    )


def _advance(session: Session, summary: Summary, ended: Sequence[Job]) -> None:
    """Count these jobs; replace, skip or finish each, and unblock parents that now can run."""
    query = select(SummaryNode).where(
        SummaryNode.summary_id == summary.id, SummaryNode.job_id.in_([job.id for job in ended])
    )
    nodes = {node.job_id: node for node in session.scalars(query.order_by(SummaryNode.number))}
    parents: set[int] = set()
    replaced: list[tuple[Job, SummaryNode, UUID]] = []
    halt: tuple[SummaryStop, JsonObject | None] | None = None
    is_going = summary.stop_reason is None and summary.state not in TERMINAL
    # All are counted before any of them ends the summary, which looks at the counts.
    for job in sorted(ended, key=lambda each: each.id):
        node = nodes.get(job.id)
        spare_id = _spare_id(job, node) if node is not None and is_going and halt is None else None
        tree_counts.note(summary, job, None if spare_id else node)
        if node is None or not is_going or halt is not None:
            continue
        if spare_id is not None:
            replaced.append((job, node, spare_id))
        elif job.state == JobState.EXPIRED:
            halt = SummaryStop.EXPIRE, None
        elif job.state != JobState.COMPLETED and node.parent is not None and summary.on_gap == OnGap.FAIL:
            halt = SummaryStop.FAIL, _chunk_failed(job, node)
        elif node.parent is not None:
            parents.add(node.parent)
    for each in replaced:
        _replace_job(session, *each)
    if halt is not None:
        stop(session, summary, halt[0], error=halt[1])
    elif is_going and parents:
        _unblock(session, summary.id, parents)


def _spare_id(job: Job, node: SummaryNode) -> UUID | None:
    """Return the id for another attempt at the job; None: it gets none."""
    code = job.error.get("code") if job.error else None
    return node.spare_job_id if job.state == JobState.FAILED and code not in HOPELESS else None


def _replace_job(session: Session, job: Job, node: SummaryNode, job_id: UUID) -> None:
    """Insert a new job for the node; it ranks right after the first."""
    session.add(replacement_of(job, job_id))
    node.job_id, node.spare_job_id = job_id, None
    summary = session.get_one(Summary, node.summary_id)
    if summary.root_job_id == job.id:
        summary.root_job_id = node.job_id
    session.flush()


def _unblock(session: Session, summary_id: UUID, parents: Collection[int]) -> None:
    """Unblock those of these nodes whose children have all ended."""
    child = select(SummaryNode.number).join(Job, Job.id == SummaryNode.job_id)
    for number in sorted(parents):
        is_left = exists(
            child.where(
                SummaryNode.summary_id == summary_id, SummaryNode.parent == number, Job.finalized_at.is_(None)
            )
        )
        parent = select(SummaryNode.job_id).where(
            SummaryNode.summary_id == summary_id, SummaryNode.number == number
        )
        if not session.scalar(select(is_left)):
            move(session, "unblock", Job.id == parent.scalar_subquery())


def _end_if_done(session: Session, summary: Summary) -> None:
    """End the summary if its root has ended, or if it is stopping and has no job left.

    Answers and extractions whose jobs have all ended go on until they are settled (`questions.settling`).
    """
    if summary.state in TERMINAL or summary.root_job_id is None:
        return
    if summary.purpose != Purpose.SUMMARY and summary.stop_reason is None:
        return
    root = session.scalars(
        select(Job).where(Job.id == summary.root_job_id).execution_options(populate_existing=True)
    ).one()
    if root.state == JobState.COMPLETED and summary.purpose == Purpose.SUMMARY:
        end(session, summary, SummaryState.COMPLETED)
    elif summary.stop_reason is not None:
        left = exists().where(Job.summary_id == summary.id, Job.finalized_at.is_(None))
        if not session.scalar(select(left)):
            end(session, summary, _ENDS[SummaryStop(summary.stop_reason)], error=summary.error)
    elif root.finalized_at is not None:
        state = SummaryState.CANCELLED if root.state == JobState.CANCELLED else SummaryState.FAILED
        end(session, summary, state, error=root.error)


_ENDS = {
    SummaryStop.CANCEL: SummaryState.CANCELLED,
    SummaryStop.EXPIRE: SummaryState.EXPIRED,
    SummaryStop.FAIL: SummaryState.FAILED,
}


def _chunk_failed(job: Job, node: SummaryNode) -> JsonObject:
    """Describe why a summary without gaps failed."""
    found: JsonObject = {
        "code": "chunk_failed",
        "message": "A chunk of the text could not be summarized, and on_gap is fail.",
        "details": {"chunk": node.chunk, "state": job.state, "error": job.error},
    }
    return found
