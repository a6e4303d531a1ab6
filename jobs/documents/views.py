"""The public shape of documents."""

from typing import TypedDict

from jobs import ids
from jobs.database.base import JsonObject
from jobs.models.document import Document
from jobs.views import optional_rfc3339, rfc3339


class DocumentObject(TypedDict):
    """A document; `pages` is their number, null if its kind has no pages."""

    id: str
    object: str
    filename: str
    kind: str
    bytes: int
    sha256: str
    state: str
    pages: int | None
    characters: int | None
    tokens: int | None
    language: str | None
    title: str | None
    warnings: list[JsonObject]
    error: JsonObject | None
    created_at: str
    finalized_at: str | None
    expires_at: str | None


def document_object(document: Document) -> DocumentObject:
    """Build the public shape of a document."""
    return DocumentObject(
        id=ids.document_id(document.id),
        object="document",
        filename=document.filename,
        kind=document.kind,
        bytes=document.num_bytes,
        sha256=document.sha256.hex(),
        state=document.state,
        pages=document.num_pages,
        characters=document.num_chars,
        tokens=document.num_tokens,
        language=document.language,
        title=document.title,
        warnings=document.warnings,
        error=document.error,
        created_at=rfc3339(document.created_at),
        finalized_at=optional_rfc3339(document.finalized_at),
        expires_at=optional_rfc3339(document.expires_at),
    )
