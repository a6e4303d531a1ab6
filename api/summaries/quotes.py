"""What a summary quotes, looked up in its documents when somebody reads it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from api.runtime.services import Services
from jobs import documents, ids
from jobs.models import SummaryDocument
from jobs.models.document import Document
from jobs.questions.passages import FoundPassage, Passage, find_passages, passages
from jobs.sealing.content import ContentUnreadableError
from jobs.states.document import DocumentState
from jobs.summaries.views import QuoteReply

# Runs a verb in a transaction that sees the summary.
Run = Callable[[Callable[[Session], "QuotedSources"]], Awaitable["QuotedSources"]]
# Of all texts together: some 2,500 pages, looked through in a second and in 100 MB.
MAX_CHARS: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class QuotedSources:
    """The texts in which the passages of a summary may be.

    Attributes:
        documents: public ids, in the summary's order.
        bodies: the stored texts, and the characters at which their pages start.
        num_chars: of all these texts.
        is_complete: the summary has no other documents with a text.
    """

    documents: Sequence[str]
    bodies: Sequence[tuple[bytes, Sequence[int]]]
    num_chars: int
    is_complete: bool


async def find_quotes(
    services: Services, run: Run, *, summary_id: UUID, summary: str | None
) -> list[QuoteReply]:
    """Find the passages that the summary has in quotation marks; texts are read only if there are any.

    Args:
        services: compute on the tenant's turn.
        run: reads the texts.
        summary_id: of the summary.
        summary: its text; None: it has none.
    """
    wanted = passages(summary) if summary is not None else []
    if not wanted:
        return []
    sources = await run(partial(_read_sources, summary_id=summary_id))
    found = await services.compute_apart(sources.num_chars, _find, wanted, sources)
    return [_reply(each, sources.documents) for each in found]


def _read_sources(session: Session, *, summary_id: UUID) -> QuotedSources:
    """Read the texts of the summary's documents, as many as may be looked through."""
    is_there = and_(Document.id == SummaryDocument.document_id, *documents.visible(None))
    query = (
        select(SummaryDocument.document_id, Document)
        .outerjoin(Document, is_there)
        .where(SummaryDocument.summary_id == summary_id)
        .order_by(SummaryDocument.position)
    )
    listed: list[str] = []
    bodies: list[tuple[bytes, Sequence[int]]] = []
    is_complete, num_chars = True, 0
    for document_id, document in session.execute(query):
        if document is not None and document.state == DocumentState.FAILED:
            continue  # it never had a text
        size = (document and document.num_chars) or 0
        if document is None or document.state != DocumentState.READY or num_chars + size > MAX_CHARS:
            is_complete = False
            continue
        try:
            body = documents.load_body(session, document_id)
        except ContentUnreadableError:
            is_complete = False
            continue
        num_chars += size
        listed.append(ids.document_id(document_id))
        bodies.append((body, list(document.pages)))
    return QuotedSources(listed, bodies, num_chars, is_complete)


def _find(wanted: Sequence[Passage], sources: QuotedSources) -> list[FoundPassage]:
    texts = (("".join(documents.iterate_text(body)), starts) for body, starts in sources.bodies)
    return find_passages(wanted, texts, is_complete=sources.is_complete)


def _reply(found: FoundPassage, listed: Sequence[str]) -> QuoteReply:
    start, end = found.place or (None, None)
    return QuoteReply(
        quote=found.passage.text,
        at=found.passage.at,
        quote_in_text=found.is_quoted,
        document_id=None if found.source is None else listed[found.source],
        start=start,
        end=end,
        pages=None if found.pages is None else list(found.pages),
    )
