"""The parts of a summary as its readers see them: each node of its tree, and the job that works on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, type_coerce
from sqlalchemy.orm import Session

from jobs import ids
from jobs.database import paging
from jobs.database.paging import FoundRows, SearchRange
from jobs.database.rows import matches
from jobs.errors import NotFoundError
from jobs.models import Job, JsonObject, Result, Summary, SummaryDocument, SummaryNode
from jobs.models.document import Document
from jobs.models.output import OUTPUT_NOTE
from jobs.states import JobState
from jobs.states.summary import NodeKind, Purpose
from jobs.summaries.lifecycle import SummaryFilter, visible


@dataclass(frozen=True, slots=True)
class SummaryPart:
    """A node of a summary's tree, with its present job.

    Attributes:
        number: from 0, children before their parent.
        kind: a `NodeKind`.
        document_id: that a leaf reads; None: it joins other parts.
        start, end: the characters of the document's text that it covers; None for joins.
        pages: first and last, from 1; None: no pages, or a join.
        prompt_tokens: of its job, None: not counted yet; `planned_tokens` is what the plan expected.
    """

    number: int
    kind: str
    parent: int | None
    level: int
    document_id: UUID | None
    start: int | None
    end: int | None
    pages: tuple[int, int] | None
    planned_tokens: int
    job_id: UUID
    state: str
    error: JsonObject | None
    prompt_tokens: int | None
    completion_tokens: int

    @property
    def document(self) -> str | None:
        """The public id of the document that it reads; None: it joins other parts."""
        return None if self.document_id is None else ids.document_id(self.document_id)

    @property
    def is_join(self) -> bool:
        """Whether it joins the summaries of other parts."""
        return self.kind == NodeKind.JOIN


def read_tree(session: Session, summary_id: UUID, *, top: SummaryPart, at_most: int) -> list[SummaryPart]:
    """Read a part and those below it, level by level: its children, and deeper ones as far as they fit.

    Args:
        session: one that sees the summary.
        summary_id: of the summary.
        top: the part to begin with.
        at_most: parts to read, if there are more than its children.

    Returns:
        Whole levels, each in the order of the text.
    """
    found = level = [top]
    while level := _read(session, summary_id, SummaryNode.parent.in_([each.number for each in level])):
        if len(found) > 1 and len(found) + len(level) > at_most:
            break
        found = found + level
    return found


def find_root(session: Session, summary_id: UUID) -> SummaryPart | None:
    """Find the part whose text is the summary.

    Returns:
        None: the summary is not planned yet.
    """
    found = _read(session, summary_id, SummaryNode.parent.is_(None))
    return found[0] if found else None


def read_leaves(session: Session, summary_id: UUID, *, limit: int) -> list[SummaryPart]:
    """Read the parts that are of a document, in the order of the text; none before they are planned."""
    return _read(session, summary_id, SummaryNode.kind != NodeKind.JOIN, limit=limit)


def get_part(session: Session, summary_id: UUID, number: int) -> SummaryPart:
    """Get the part of this number.

    Raises:
        NotFoundError: the summary has none.
    """
    found = _read(session, summary_id, SummaryNode.number == number)
    if not found:
        raise NotFoundError("There is no such part.")
    return found[0]


def read_outputs(session: Session, parts: Sequence[SummaryPart]) -> dict[int, str]:
    """Read the summaries that the jobs of these parts have written, by the parts' numbers.

    Those that have not completed are left out. A summary that cannot be decrypted is an `Unreadable`.
    """
    numbers = {part.job_id: part.number for part in parts if part.state == JobState.COMPLETED}
    query = select(Result.job_id, type_coerce(Result.output, OUTPUT_NOTE))
    rows = session.execute(query.where(Result.job_id.in_(numbers)))
    return {numbers[job_id]: output for job_id, output in rows}


def _read(
    session: Session, summary_id: UUID, *which: ColumnElement[bool], limit: int | None = None
) -> list[SummaryPart]:
    columns = (Job.state, Job.error, Job.prompt_tokens, Job.completion_tokens)
    query = (
        select(SummaryNode, *columns)
        .join(Job, Job.id == SummaryNode.job_id)
        .where(SummaryNode.summary_id == summary_id, *which)
        .order_by(SummaryNode.number)
        .limit(limit)
    )
    return [_part(node, *others) for node, *others in session.execute(query)]


def _part(node: SummaryNode, *of_job: Any) -> SummaryPart:  # noqa: ANN401  # four columns, each of its type
    has_pages = node.first_page is not None and node.last_page is not None
    state, error, prompt_tokens, completion_tokens = of_job
    return SummaryPart(
        number=node.number,
        kind=node.kind,
        parent=node.parent,
        level=node.level,
        document_id=node.document_id,
        start=node.start_char,
        end=node.end_char,
        pages=(node.first_page or 1, node.last_page or 1) if has_pages else None,
        planned_tokens=node.tokens,
        job_id=node.job_id,
        state=state,
        error=error,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )


def search_summaries(
    session: Session,
    which: SummaryFilter,
    wanted: SearchRange,
    *,
    purpose: Purpose = Purpose.SUMMARY,
) -> FoundRows[Summary]:
    """Search for summaries, or other rows of this purpose.

    Indexes find a tenant's and those of a document.
    """
    tenant_id = wanted.tenant_id
    return paging.search(
        session,
        select(Summary).where(*visible(tenant_id, purpose), *which.conditions()),
        Summary.id,
        wanted,
        among=matches((Summary.tenant_id, tenant_id)),
        has_index=tenant_id is not None or which.document_id is not None,
    )


@dataclass(frozen=True, slots=True)
class SummarySources:
    """What a summary is of.

    Attributes:
        name: title or filename of its first document; None: that is deleted, or has none.
        num_documents: of the summary.
    """

    name: str | None
    num_documents: int


def read_sources(session: Session, summary_ids: Sequence[UUID]) -> dict[UUID, SummarySources]:
    """Read the first document's name and the number of documents of each summary."""
    mine = SummaryDocument.summary_id.in_(summary_ids)
    last = select(SummaryDocument.summary_id, func.max(SummaryDocument.position)).where(mine)
    counts = dict(session.execute(last.group_by(SummaryDocument.summary_id)).tuples().all())
    first = (
        select(SummaryDocument.summary_id, Document.title, Document.filename)
        .outerjoin(Document, Document.id == SummaryDocument.document_id)
        .where(mine, SummaryDocument.position == 0)
    )
    return {
        row.summary_id: SummarySources(row.title or row.filename or None, counts[row.summary_id] + 1)
        for row in session.execute(first)
    }
