"""The end of answers and extractions: one transaction stores what the document says, once all jobs ended.

A service worker does it, since it reads the whole text to look for quotes. A process killed meanwhile leaves
the row as it was, and another worker settles it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from sqlalchemy import Integer, Select, and_, cast, insert, literal_column, select
from sqlalchemy import text as sql
from sqlalchemy.orm import Session

from jobs import documents
from jobs.errors import NotFoundError
from jobs.models import DocumentFinding, Job, JsonObject, Result, Summary, SummaryDocument, SummaryNode
from jobs.models.document import Document
from jobs.models.summary import UNSETTLED
from jobs.questions.joining import AskedPart, Conclusion, JobEnd, conclude
from jobs.questions.quotes import QuotableText
from jobs.sealing.content import ContentUnreadableError
from jobs.states import JobState
from jobs.states.summary import Purpose, SummaryState
from jobs.trees import progress as tree_progress

LOST: Final[JsonObject] = {
    "code": "planning_failed",
    "message": "It was planned by another release; ask again.",
}


_IS_READY: Final = and_(
    literal_column(f"({UNSETTLED})"),
    Summary.stop_reason.is_(None),
    Summary.num_completed + Summary.num_failed >= cast(Summary.plan["jobs"].astext, Integer),
)


def ready_to_settle() -> Select[UUID]:
    """Select answers whose jobs have all ended, oldest first."""
    return select(Summary.id).where(_IS_READY).order_by(Summary.id)


@dataclass(slots=True)
class AskedTree:
    """How the jobs of one question, or of one extraction, ended."""

    parts: list[AskedPart] = field(default_factory=list)
    joined: JobEnd | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What the document says.

    Attributes:
        rows: of the findings: columns that differ from their defaults.
        error: why nothing is known; None: something is.
    """

    rows: Sequence[Mapping[str, object]]
    error: Mapping[str, object] | None


class Conclude(Protocol):
    """Draws what a document says from how the jobs ended."""

    def __call__(
        self,
        asked: Summary,
        trees: Mapping[int | None, AskedTree],
        text: QuotableText | None,
        page_starts: Sequence[int],
    ) -> Settled:
        """Draw it, and set what the row itself says of it.

        Args:
            asked: the row that asked.
            trees: by the place of their question; None: of none.
            text: of the document; None: it no longer exists.
            page_starts: the character at which each page starts.
        """


def conclude_answers(
    asked: Summary,
    trees: Mapping[int | None, AskedTree],
    text: QuotableText | None,
    page_starts: Sequence[int],
) -> Settled:
    """Draw the answers; see `Conclude`."""
    found = [
        conclude(tree.parts, tree.joined, text=text, page_starts=page_starts)
        if (tree := trees.get(place)) is not None and tree.parts
        else Conclusion(error=LOST)
        for place in range(len(asked.questions or ()))
    ]
    errors = [each.error for each in found if each.error is not None]
    return Settled([*map(_row, found)], errors[0] if len(errors) == len(found) else None)


ANSWERS_ALONE: Final[Mapping[str, Conclude]] = {Purpose.ANSWERS: conclude_answers}


def settle(
    session: Session, only: Sequence[UUID], *, concluding: Mapping[str, Conclude] = ANSWERS_ALONE
) -> int:
    """Settle those of these rows that are ready and that nobody else settles; return their number.

    Args:
        session: its transaction.
        only: ids of rows.
        concluding: what draws conclusions, by `Purpose`; rows of others are left alone.
    """
    query = (
        select(Summary)
        # Not by a subquery, which Postgres does not look at again if the row changed before it was locked.
        .where(Summary.id.in_(only), _IS_READY, Summary.purpose.in_(concluding))
        .order_by(Summary.id)
        .with_for_update(key_share=True, skip_locked=True)
        .execution_options(populate_existing=True)
    )
    # Quotes are looked for in up to 20 million characters, while no statement runs.
    session.execute(sql("SET LOCAL idle_in_transaction_session_timeout = '10min'"))
    ready = session.scalars(query).all()
    for asked in ready:
        _settle(session, asked, concluding[asked.purpose])
    return len(ready)


def _settle(session: Session, asked: Summary, conclude_all: Conclude) -> None:
    try:
        settled = conclude_all(asked, _read_trees(session, asked.id), *_read_text(session, asked.id))
    except ContentUnreadableError as error:  # no other attempt could read it either
        settled = Settled([], {"code": error.code, "message": error.message})
    own = {"summary_id": asked.id, "tenant_id": asked.tenant_id}
    if settled.rows:
        rows = [{**row, **own, "place": place} for place, row in enumerate(settled.rows)]
        session.execute(insert(DocumentFinding), rows)
    if settled.error is not None:
        tree_progress.end(session, asked, SummaryState.FAILED, error=dict(settled.error))
    else:
        tree_progress.end(session, asked, SummaryState.COMPLETED)


def _read_trees(session: Session, asked_id: UUID) -> dict[int | None, AskedTree]:
    """Read the ends of leaves and of last joins, by the place of their question; None: of none."""
    rows = session.execute(
        select(SummaryNode, Job.state, Job.error, Result.output)
        .join(Job, Job.id == SummaryNode.job_id)
        .outerjoin(Result, Result.job_id == Job.id)
        .where(
            SummaryNode.summary_id == asked_id,
            (SummaryNode.level == 0) | SummaryNode.parent.is_(None),
        )
        .order_by(SummaryNode.number)
    )
    found: dict[int | None, AskedTree] = defaultdict(AskedTree)
    for node, state, error, output in rows:
        ended = JobEnd(output, None) if state == JobState.COMPLETED else JobEnd(None, error)
        tree = found[node.question]
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


def _row(found: Conclusion) -> dict[str, object]:
    start, end = found.place or (None, None)
    first, last = found.pages or (None, None)
    return {
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
