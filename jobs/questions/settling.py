"""The end of answers: once all jobs have ended, one transaction stores what the document says.

A service worker does it, since it reads the whole text to look for quotes. A process killed meanwhile leaves
the row as it was, and another worker settles it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import Integer, Select, cast, insert, literal_column, select, text
from sqlalchemy.orm import Session

from jobs import documents
from jobs.errors import NotFoundError
from jobs.models import DocumentFinding, Job, JsonObject, Result, Summary, SummaryDocument, SummaryNode
from jobs.models.document import Document
from jobs.models.summary import RUNNING_ANSWERS
from jobs.questions.joining import AskedPart, Conclusion, JobEnd, conclude
from jobs.questions.quotes import QuotableText
from jobs.states import JobState
from jobs.states.summary import SummaryState
from jobs.trees import progress as tree_progress

_LOST: JsonObject = {
    "code": "planning_failed",
    "message": "It was planned by another release; ask again.",
}


def ready_to_settle() -> Select[UUID]:
    """Select answers whose jobs have all ended, oldest first."""
    num_ended = Summary.num_completed + Summary.num_failed
    return (
        select(Summary.id)
        .where(
            literal_column(f"({RUNNING_ANSWERS})"),
            Summary.stop_reason.is_(None),
            num_ended >= cast(Summary.plan["jobs"].astext, Integer),
        )
        .order_by(Summary.id)
    )


def settle(session: Session, only: Sequence[UUID]) -> int:
    """Settle those of these answers that are ready and that nobody else settles; return their number."""
    query = (
        select(Summary)
        .where(Summary.id.in_(ready_to_settle().where(Summary.id.in_(only))))
        .with_for_update(key_share=True, skip_locked=True)
        .execution_options(populate_existing=True)
    )
    # Quotes are looked for in up to 20 million characters, while no statement runs.
    session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '10min'"))
    ready = session.scalars(query).all()
    for asked in ready:
        _settle(session, asked)
    return len(ready)


@dataclass(slots=True)
class _Tree:
    """How the jobs of one question ended."""

    parts: list[AskedPart] = field(default_factory=list)
    joined: JobEnd | None = None


def _settle(session: Session, asked: Summary) -> None:
    trees = _read_trees(session, asked.id)
    readable, page_starts = _read_text(session, asked.id)
    found = [
        conclude(tree.parts, tree.joined, text=readable, page_starts=page_starts)
        if (tree := trees.get(place)) is not None and tree.parts
        else Conclusion(error=_LOST)
        for place in range(len(asked.questions or ()))
    ]
    rows = [_row(asked, place, each) for place, each in enumerate(found)]
    session.execute(insert(DocumentFinding), rows)
    errors = [each.error for each in found if each.error is not None]
    if len(errors) == len(found):
        tree_progress.end(session, asked, SummaryState.FAILED, error=dict(errors[0]))
    else:
        tree_progress.end(session, asked, SummaryState.COMPLETED)


def _read_trees(session: Session, asked_id: UUID) -> dict[int, _Tree]:
    """Read the ends of leaves and of last joins, by the place of their question."""
    rows = session.execute(
        select(SummaryNode, Job.state, Job.error, Result.output)
        .join(Job, Job.id == SummaryNode.job_id)
        .outerjoin(Result, Result.job_id == Job.id)
        .where(
            SummaryNode.summary_id == asked_id,
            (SummaryNode.level == 0) | SummaryNode.parent.is_(None),
            SummaryNode.question.is_not(None),
        )
        .order_by(SummaryNode.number)
    )
    found: dict[int, _Tree] = defaultdict(_Tree)
    for node, state, error, output in rows:
        ended = JobEnd(output, None) if state == JobState.COMPLETED else JobEnd(None, error)
        tree = found[node.question or 0]
        if node.level:
            tree.joined = ended
            continue
        pages = None if node.first_page is None else (node.first_page, node.last_page or node.first_page)
        tree.parts.append(AskedPart(node.start_char or 0, node.end_char or 0, pages, ended))
    return found


def _read_text(session: Session, asked_id: UUID) -> tuple[QuotableText | None, Sequence[int]]:
    """Read the document's text and where its pages start; no text if it no longer exists."""
    document = session.scalar(
        select(Document)
        .join(SummaryDocument, SummaryDocument.document_id == Document.id)
        .where(SummaryDocument.summary_id == asked_id)
    )
    if document is None:
        return None, ()
    try:
        return QuotableText(documents.load_text(session, document.id)), document.pages
    except NotFoundError:
        return None, ()


def _row(asked: Summary, place: int, found: Conclusion) -> dict[str, object]:
    start, end = found.place or (None, None)
    first, last = found.pages or (None, None)
    return {
        "summary_id": asked.id,
        "place": place,
        "tenant_id": asked.tenant_id,
        "value": found.value,
        "quote": found.quote,
        "is_quoted": found.is_quoted,
        "start_char": start,
        "end_char": end,
        "first_page": first,
        "last_page": last,
        "gaps": list(found.gaps),
        "error": None if found.error is None else dict(found.error),
    }
