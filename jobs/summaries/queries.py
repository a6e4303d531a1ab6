"""Queries on summaries: their jobs' progress, results and gaps in the public shape."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from jobs import ids
from jobs.models import Job, Result, Summary, SummaryDocument, SummaryNode
from jobs.models.document import Document
from jobs.states import TERMINAL, JobState
from jobs.states.summary import SummaryState, SummaryStop
from jobs.summaries.views import (
    ChunkReply,
    GapReply,
    ProgressReply,
    SummaryDetails,
    SummaryObject,
    SummaryUsageReply,
    SummaryWithChunks,
    SummaryWithFirstChunks,
    summary_object,
)

_ById = dict[UUID, SummaryDetails]
_FAILED = sorted(TERMINAL - {JobState.COMPLETED})


def describe(session: Session, summaries: Sequence[Summary]) -> list[SummaryObject]:
    """Return the public shape of these summaries, in order, with six queries in all."""
    details: _ById = defaultdict(SummaryDetails)
    by_id = {summary.id: summary for summary in summaries}
    _read_documents(session, by_id, details)
    _read_progress(session, by_id, details)
    _read_usage(session, by_id, details)
    _read_texts(session, by_id, details)
    _read_gaps(session, by_id, details)
    return [summary_object(summary, details[summary.id]) for summary in summaries]


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """A range of chunks in the order of the text: at most `limit`, from number `start` on."""

    start: int
    limit: int


def describe_with_chunks(session: Session, summary: Summary) -> SummaryWithChunks:
    """Return the public shape of the summary, with all its chunks."""
    (found,) = describe(session, [summary])
    return SummaryWithChunks(**found, chunks=list_chunks(session, summary.id))


def describe_with_some_chunks(
    session: Session, summary: Summary, wanted: ChunkRange
) -> SummaryWithChunks | SummaryWithFirstChunks:
    """Return the public shape of the summary, with a range of its chunks."""
    (found,) = describe(session, [summary])
    chunks = list_chunks(session, summary.id, start=wanted.start, limit=wanted.limit + 1)
    if len(chunks) <= wanted.limit:
        return SummaryWithChunks(**found, chunks=chunks)
    next_start = wanted.start + wanted.limit
    return SummaryWithFirstChunks(**found, chunks=chunks[: wanted.limit], next_chunks_start=next_start)


def titles(session: Session, summary_id: UUID) -> dict[str, str]:
    """Return the titles or filenames of a summary's existing documents, by public id."""
    query = (
        select(Document.id, Document.title, Document.filename)
        .join(SummaryDocument, SummaryDocument.document_id == Document.id)
        .where(SummaryDocument.summary_id == summary_id)
    )
    return {
        ids.document_id(row.id): row.title or row.filename
        for row in session.execute(query)
        if row.title or row.filename
    }


def list_chunks(
    session: Session, summary_id: UUID, *, start: int = 0, limit: int | None = None
) -> list[ChunkReply]:
    """List leaves in text order from number `start` on, each with its summary."""
    rows = session.execute(
        select(SummaryNode, Job.state, Job.error, Result.output)
        .join(Job, Job.id == SummaryNode.job_id)
        .outerjoin(Result, Result.job_id == Job.id)
        .where(SummaryNode.summary_id == summary_id, SummaryNode.level == 0)
        .order_by(SummaryNode.number)
        .offset(start)
        .limit(limit)
    )
    return [
        ChunkReply(
            document_id=ids.document_id(node.document_id),
            index=node.chunk or 0,
            start=node.start_char or 0,
            end=node.end_char or 0,
            pages=_pages(node),
            state=state,
            summary=output if state == JobState.COMPLETED else None,
            error=error,
        )
        for node, state, error, output in rows
        if node.document_id is not None
    ]


def _read_documents(session: Session, by_id: dict[UUID, Summary], details: _ById) -> None:
    query = (
        select(SummaryDocument.summary_id, SummaryDocument.document_id)
        .where(SummaryDocument.summary_id.in_(by_id))
        .order_by(SummaryDocument.summary_id, SummaryDocument.position)
    )
    for summary_id, document_id in session.execute(query):
        details[summary_id].documents.append(document_id)


def _read_progress(session: Session, by_id: dict[UUID, Summary], details: _ById) -> None:
    """Read the progress from the current job of each node."""
    ended = Job.finalized_at.is_not(None)
    query = (
        select(
            SummaryNode.summary_id,
            func.count().label("jobs"),
            func.count().filter(Job.state == "completed").label("completed"),
            func.count().filter(Job.state.in_(_FAILED)).label("failed"),
            func.count().filter(Job.state == "running").label("running"),
            func.coalesce(func.sum(case((ended, SummaryNode.tokens), else_=0)), 0).label("done"),
            func.sum(SummaryNode.tokens).label("total"),
        )
        .join(Job, Job.id == SummaryNode.job_id)
        .where(SummaryNode.summary_id.in_(by_id))
        .group_by(SummaryNode.summary_id)
    )
    for row in session.execute(query):
        details[row.summary_id].progress = ProgressReply(
            jobs=row.jobs,
            completed=row.completed,
            failed=row.failed,
            running=row.running,
            tokens_done=int(row.done),
            tokens_total=int(row.total),
        )


def _read_usage(session: Session, by_id: dict[UUID, Summary], details: _ById) -> None:
    began = Job.started_at.is_not(None)
    prompt = func.coalesce(func.sum(case((began, Job.prompt_tokens), else_=0)), 0)
    cached = func.coalesce(func.sum(Job.cached_tokens), 0).label("cached")
    completion = func.sum(Job.completion_tokens).label("completion")
    query = (
        select(Job.summary_id, prompt.label("prompt"), cached, completion)
        .where(Job.summary_id.in_(by_id))
        .group_by(Job.summary_id)
    )
    for row in session.execute(query):
        if row.summary_id is not None:
            details[row.summary_id].usage = SummaryUsageReply(
                prompt_tokens=int(row.prompt),
                cached_tokens=int(row.cached),
                completion_tokens=int(row.completion),
            )


def _read_texts(session: Session, by_id: dict[UUID, Summary], details: _ById) -> None:
    roots = {
        summary.root_job_id: summary.id
        for summary in by_id.values()
        if summary.state == SummaryState.COMPLETED and summary.root_job_id is not None
    }
    if not roots:
        return
    for job_id, output in session.execute(
        select(Result.job_id, Result.output).where(Result.job_id.in_(roots))
    ):
        details[roots[job_id]].text = output


def _read_gaps(session: Session, by_id: dict[UUID, Summary], details: _ById) -> None:
    """Read what is missing: unreadable documents, then chunks that failed."""
    for summary in by_id.values():
        for gap in summary.gaps:
            error = gap["error"]
            details[summary.id].gaps.append(
                GapReply(
                    document_id=str(gap["document_id"]),
                    start=None,
                    end=None,
                    pages=None,
                    error=error if isinstance(error, dict) else None,
                )
            )
    # What was stopped on purpose is not a gap.
    ids_ = [
        summary.id
        for summary in by_id.values()
        if summary.stop_reason not in (SummaryStop.CANCEL, SummaryStop.EXPIRE)
    ]
    query = (
        select(SummaryNode, Job.error)
        .join(Job, Job.id == SummaryNode.job_id)
        .where(SummaryNode.summary_id.in_(ids_), Job.state.in_(_FAILED))
        .order_by(SummaryNode.summary_id, SummaryNode.number)
    )
    for failed, error in session.execute(query).all():
        for node in [failed] if failed.level == 0 else _leaves_below(session, failed):
            details[node.summary_id].gaps.append(
                GapReply(
                    document_id=ids.document_id(node.document_id or node.summary_id),
                    start=node.start_char,
                    end=node.end_char,
                    pages=_pages(node),
                    error=error,
                )
            )


def _leaves_below(session: Session, top: SummaryNode) -> list[SummaryNode]:
    """Return the leaves lost with this failed join, without those that failed alone."""
    query = (
        select(SummaryNode, Job.state)
        .join(Job, Job.id == SummaryNode.job_id)
        .where(SummaryNode.summary_id == top.summary_id, SummaryNode.number < top.number)
        .order_by(SummaryNode.number.desc())
    )
    lost, found = {top.number}, []
    for node, state in session.execute(query):  # parents before their children
        if node.parent in lost and state == JobState.COMPLETED:
            lost.add(node.number)
            if node.level == 0:
                found.append(node)
    return found[::-1]


def _pages(node: SummaryNode) -> Sequence[int] | None:
    if node.first_page is None or node.last_page is None:
        return None
    return [node.first_page, node.last_page]
