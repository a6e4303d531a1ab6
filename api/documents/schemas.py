"""Requests and replies about documents."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, with_config

from api.http.fields import example
from api.http.identifiers import PageQuery
from api.http.replies import DeletionReply, ListReply, gone_example, page_example
from jobs.documents.views import DocumentObject, DocumentStateName, KindName
from jobs.validation import Closed

_ID: Final = "doc_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_DOCUMENT: Final[dict[str, Any]] = {
    "id": _ID,
    "object": "document",
    "filename": "report-2026.pdf",
    "kind": "pdf",
    "bytes": 1_482_003,
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "state": "ready",
    "pages": 212,
    "characters": 611_402,
    "tokens": 141_377,
    "language": "en",
    "title": "Annual report",
    "warnings": [
        {"code": "pages_without_text", "message": "1 pages have no text; they may be scanned.", "pages": [2]}
    ],
    "attachments": [],
    "error": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "finalized_at": "2026-01-31T12:00:01.500000Z",
    "expires_at": "2026-03-02T12:00:01.500000Z",
}


class DocumentForm(Closed):
    """A document as a form."""

    model_config = example(file="Annual report …", kind="txt")

    file: bytes = Field(strict=False, json_schema_extra={"format": "binary"})
    kind: KindName | None = Field(None, description="The kind that the file must be; detected if absent.")
    encoding: str | None = Field(
        None, description="Encoding of a text, such as `windows-1251`; detected if absent."
    )


class DocumentListQuery(PageQuery):
    """The documents to list, and where to start."""

    state: DocumentStateName | None = None


class DocumentTextQuery(BaseModel):
    """The range of a text to read, in characters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: int = Field(0, ge=0, le=2**31 - 1, description="The first character.")
    end: int | None = Field(
        None, ge=0, le=2**31 - 1, description="One past the last character; null: to the end."
    )


@with_config(example(**_DOCUMENT))
class DocumentReply(DocumentObject):
    """A document. Fields that depend on its text are null until `state` is `ready`."""


@with_config(example(**_DOCUMENT, page_offsets=[0, 1874, 1874, 4410]))
class DocumentWithPagesReply(DocumentObject):
    """A document with the offsets of its pages."""

    page_offsets: Annotated[
        list[int], Field(description="Character at which each page starts; [] without pages.")
    ]


class DocumentListReply(ListReply[DocumentReply]):
    """A page of documents, newest first."""

    model_config = page_example(_DOCUMENT)


class DocumentDeletedReply(DeletionReply[Literal["document"]]):
    """A document that was deleted."""

    model_config = gone_example(_DOCUMENT)
