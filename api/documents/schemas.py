"""What callers send about documents, and what they get back."""

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.http.replies import GoneReply, ListReply, example, gone_example, page_example
from jobs.states.document import DocumentKind, DocumentState, Fault, Notice
from jobs.validation import Closed

KindName = Literal["txt", "md", "html", "pdf", "docx", "pptx", "xlsx", "epub", "eml"]
assert set(KindName.__args__) == set(DocumentKind)  # type: ignore[attr-defined]  # noqa: S101  # literals have args
DocumentStateName = Literal["extracting", "ready", "failed"]
assert set(DocumentStateName.__args__) | {"deleted"} == set(DocumentState)  # type: ignore[attr-defined]  # noqa: S101

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
    "error": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "finalized_at": "2026-01-31T12:00:01.500000Z",
    "expires_at": "2026-03-02T12:00:01.500000Z",
}


class DocumentForm(Closed):
    """A document as a form."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"file": "Annual report …", "kind": "txt"}]})

    file: bytes = Field(strict=False, json_schema_extra={"format": "binary"})
    kind: KindName | None = Field(None, description="what the file must be; found out by itself without it")


class DocumentListQuery(BaseModel):
    """Which documents to list, and from where on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: DocumentStateName | None = None
    after: str | None = Field(None, description="id of the last document seen; the list goes on behind it")
    limit: int = Field(20, ge=1, le=100)


class DocumentTextQuery(BaseModel):
    """Which part of a text, in characters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: int = Field(0, ge=0, le=2**31 - 1, description="the first character")
    end: int | None = Field(None, ge=0, le=2**31 - 1, description="behind the last one; null: to the end")


class DocumentWarning(BaseModel):
    """What a reader of the text should know."""

    code: Notice
    message: str
    pages: list[int] | None = Field(None, description="that it is about, counted from 1; the first thousand")


class DocumentError(BaseModel):
    """Why there is no text."""

    code: Fault
    message: str


class DocumentReply(BaseModel):
    """A document; what its text decides is null until `state` is `ready`."""

    model_config = example(**_DOCUMENT)

    id: str
    object: Literal["document"]
    filename: str = Field(description="as it was sent first")
    kind: KindName
    bytes: int
    sha256: str
    state: DocumentStateName
    pages: int | None = Field(
        description="pages, slides of pptx, sheets of xlsx, chapters of epub; null for kinds without"
    )
    characters: int | None = Field(description="of the text; offsets everywhere count these")
    tokens: int | None = Field(description="of the text alone, with the served model's tokenizer")
    language: str | None = Field(description="ISO 639-1; null when not sure")
    title: str | None
    warnings: list[DocumentWarning]
    error: DocumentError | None
    created_at: datetime
    finalized_at: datetime | None
    expires_at: datetime | None = Field(description="the document is gone then; sent again it lives on")


class SeenDocumentReply(DocumentReply):
    """A document with the map of its pages."""

    model_config = example(**_DOCUMENT, page_offsets=[0, 1874, 1874, 4410])

    page_offsets: list[int] = Field(description="the character at which each page starts; [] without pages")


class DocumentListReply(ListReply[DocumentReply]):
    """A page of documents, newest first."""

    model_config = page_example(_DOCUMENT)


class DocumentDeletedReply(GoneReply[Literal["document"]]):
    """A document that is gone."""

    model_config = gone_example(_DOCUMENT)
