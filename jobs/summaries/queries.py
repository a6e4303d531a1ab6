"""Queries on summaries: their jobs' progress, results and gaps in the public shape."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Integer, Uuid, any_, cast, select, type_coerce
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from jobs import ids
from jobs.models import Job, Result, Summary, SummaryDocument, SummaryNode
from jobs.models.document import Document
from jobs.models.output import OUTPUT_NOTE
from jobs.sealing.content import fault_of, require_readable, shown
from jobs.states import TERMINAL, JobState
from jobs.states.summary import SummaryState, SummaryStop
from jobs.summaries import stored_templates
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
from jobs.trees import counts as tree_counts
from jobs.trees.counts import TreeCounts

_ById = dict[UUID, SummaryDetails]
_FAILED = sorted(TERMINAL - {JobState.COMPLETED})


def describe_each(session: Session, summaries: Sequence[Summary]) -> list[SummaryObject]:
    """Return the public shape of these summaries, in order, with few queries in all.

    One whose text cannot be decrypted has the error in its place.
    """
    details = _read_details(session, summaries)
    return [summary_object(summary, details[summary.id]) for summary in summaries]


def describe(session: Session, summary: Summary, *, max_gaps: int | None = None) -> SummaryObject:
    """Return the public shape of a summary.

    Args:
        session: the caller's transaction.
        summary: to describe.
        max_gaps: about so many are read of those that failed jobs left; None: all.

    Raises:
        ContentUnreadableError: its text cannot be decrypted.
    """
    details = _read_details(session, [summary], max_gaps=max_gaps)[summary.id]
    require_readable(details.text)
    return summary_object(summary, details)


def _read_details(
    session: Session, summaries: Sequence[Summary], *, max_gaps: int | None = None
) -> Mapping[UUID, SummaryDetails]:
    details: _ById = defaultdict(SummaryDetails)
    by_id = {summary.id: summary for summary in summaries}
    _read_documents(session, by_id, details)
    templates = stored_templates.read_each(session, summaries)
    for summary in summaries:
        if summary.template_id is not None:
            details[summary.id].template = templates.get(summary.template_id)
    _read_counts(session, by_id, details)
    _read_texts(session, by_id, details)
    _read_gaps(session, by_id, details, at_most=max_gaps)
    return details


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """A range of chunks in the order of the text: at most `limit`, from number `start` on."""

    start: int
    limit: int


def describe_with_chunks(session: Session, summary: Summary) -> SummaryWithChunks:
    """Return the public shape of the summary, with all its chunks; raise as `describe` does."""
    found = describe(session, summary)
    return SummaryWithChunks(**found, chunks=list_chunks(session, summary.id))


def describe_with_some_chunks(
    session: Session, summary: Summary, wanted: ChunkRange
) -> SummaryWithChunks | SummaryWithFirstChunks:
    """Return the public shape of the summary, with a range of its chunks; raise as `describe` does."""
    found = describe(session, summary)
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
    """List leaves in text order from number `start` on, each with its summary, or why it has none."""
    rows = session.execute(
        select(SummaryNode, Job.state, Job.error, type_coerce(Result.output, OUTPUT_NOTE))
        .join(Job, Job.id == SummaryNode.job_id)
        .outerjoin(Result, Result.job_id == Job.id)
        .where(SummaryNode.summary_id == summary_id, SummaryNode.level == 0)
        .order_by(SummaryNode.number)
        .offset(start)
        .limit(limit)
    )
    chunks: list[ChunkReply] = []
    for node, state, error, output in rows:
        if node.document_id is None:
            continue
        written = output if state == JobState.COMPLETED else None
        chunks.append(
            ChunkReply(
                document_id=ids.document_id(node.document_id),
                index=node.chunk or 0,
                start=node.start_char or 0,
                end=node.end_char or 0,
                pages=_pages(node),
                state=state,
                summary=shown(written),
                error=error or fault_of(written),
            )
        )
    return chunks


def _read_documents(session: Session, by_id: dict[UUID, Summary], details: _ById) -> None:
    query = (
        select(SummaryDocument.summary_id, SummaryDocument.document_id)
        .where(SummaryDocument.summary_id.in_(by_id))
        .order_by(SummaryDocument.summary_id, SummaryDocument.position)
    )
    for summary_id, document_id in session.execute(query):
        details[summary_id].documents.append(document_id)


def _read_counts(session: Session, by_id: dict[UUID, Summary], details: _ById) -> None:
    for summary_id, found in tree_counts.read(session, by_id.values()).items():
        details[summary_id].progress = progress_reply(found)
        details[summary_id].usage = usage_reply(found)


def progress_reply(found: TreeCounts) -> ProgressReply:
    """Build the public shape of how far a tree is."""
    return ProgressReply(
        jobs=found.num_jobs,
        completed=found.num_completed,
        failed=found.num_failed,
        running=found.num_running,
        tokens_done=found.ended_tokens,
        tokens_total=found.planned_tokens,
    )


def usage_reply(found: TreeCounts) -> SummaryUsageReply:
    """Build the public shape of what a tree has used."""
    return SummaryUsageReply(
        prompt_tokens=found.prompt_tokens,
        cached_tokens=found.cached_tokens,
        completion_tokens=found.completion_tokens,
    )


def _read_texts(session: Session, by_id: dict[UUID, Summary], details: _ById) -> None:
    roots = {
        summary.root_job_id: summary.id
        for summary in by_id.values()
        if summary.state == SummaryState.COMPLETED and summary.root_job_id is not None
    }
    if not roots:
        return
    query = select(Result.job_id, type_coerce(Result.output, OUTPUT_NOTE)).where(Result.job_id.in_(roots))
    for job_id, output in session.execute(query):
        details[roots[job_id]].text = output


def _read_gaps(session: Session, by_id: dict[UUID, Summary], details: _ById, *, at_most: int | None) -> None:
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
        and (summary.num_completed is None or summary.num_failed)
    ]
    if ids_:
        _read_lost(session, ids_, details, at_most=at_most)


def _read_lost(session: Session, summary_ids: Sequence[UUID], details: _ById, *, at_most: int | None) -> None:
    """Read the chunks that are missing because a job of their trees failed."""
    # Jobs are numbered as their nodes. In two steps, for which the planner finds the indexes.
    query = (
        select(Job.id, Job.error)
        .where(Job.summary_id.in_(summary_ids), tree_counts.noted(), Job.state.in_(_FAILED))
        .order_by(Job.summary_id, Job.tenant_id, Job.id)
        .limit(at_most)
    )
    errors = dict(session.execute(query).all())
    mine = SummaryNode.job_id == any_(cast(list(errors), ARRAY(Uuid)))
    places = (SummaryNode.summary_id, SummaryNode.number)
    for failed in session.scalars(select(SummaryNode).where(mine).order_by(*places)).all():
        error = errors[failed.job_id]
        for node in [failed] if failed.level == 0 else _leaves_below(session, failed, at_most=at_most):
            details[node.summary_id].gaps.append(
                GapReply(
                    document_id=ids.document_id(node.document_id or node.summary_id),
                    start=node.start_char,
                    end=node.end_char,
                    pages=_pages(node),
                    error=error,
                )
            )


def _leaves_below(session: Session, top: SummaryNode, *, at_most: int | None) -> list[SummaryNode]:
    """Return the leaves lost with this failed join, without those that failed alone; in text order.

    Args:
        session: the caller's transaction.
        top: the join.
        at_most: so many at least, if there are; None: all.
    """
    found: list[SummaryNode] = []
    level = [top]
    while level:
        children = (
            select(SummaryNode)
            .join(Job, Job.id == SummaryNode.job_id)
            .where(
                SummaryNode.summary_id == top.summary_id,
                SummaryNode.parent == any_(cast([each.number for each in level], ARRAY(Integer))),
                Job.state == JobState.COMPLETED,
            )
            .order_by(SummaryNode.number)
            .limit(at_most)  # below each of them is a leaf that completed
        )
        level = list(session.scalars(children))
        found += [each for each in level if each.level == 0]
        level = [each for each in level if each.level > 0]
    return sorted(found, key=lambda each: each.number)


def _pages(node: SummaryNode) -> Sequence[int] | None:
    if node.first_page is None or node.last_page is None:
        return None
    return [node.first_page, node.last_page]
