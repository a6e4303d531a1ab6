"""The document of which answers or an extraction are."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs import documents
from jobs.models import Summary, SummaryDocument
from jobs.models.document import Document


def name_of(document: Document | None, document_id: str) -> str:
    """Return the document's title, or its filename, or its id."""
    return (document and (document.title or document.filename)) or document_id


def find_document(session: Session, asked: Summary) -> Document | None:
    """Find the document that was asked.

    Returns:
        None: it is deleted.
    """
    of_it = select(SummaryDocument.document_id).where(SummaryDocument.summary_id == asked.id)
    found = select(Document).where(
        Document.id == of_it.scalar_subquery(), *documents.visible(asked.tenant_id)
    )
    return session.scalar(found)
