"""Requests and replies about documents."""

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
    kind: KindName | None = Field(None, description="The kind that the file must be; detected if absent.")


class DocumentListQuery(BaseModel):
    """The documents to list, and where to start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: DocumentStateName | None = None
    after: str | None = Field(
        None, description="Id of the last document received; the list continues after it."
    )
    limit: int = Field(20, ge=1, le=100)


class DocumentTextQuery(BaseModel):
    """The range of a text to read, in characters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: int = Field(0, ge=0, le=2**31 - 1, description="The first character.")
    end: int | None = Field(
        None, ge=0, le=2**31 - 1, description="One past the last character; null: to the end."
    )


class DocumentWarning(BaseModel):
    """A warning about the extracted text."""

    code: Notice
    message: str
    pages: list[int] | None = Field(None, description="Pages concerned, counted from 1; the first thousand.")


class DocumentError(BaseModel):
    """Why a document has no text."""

    code: Fault
    message: str


class DocumentReply(BaseModel):
    """A document. Fields that depend on its text are null until `state` is `ready`."""

    model_config = example(**_DOCUMENT)

    id: str
    object: Literal["document"]
    filename: str = Field(description="As first uploaded.")
    kind: KindName
    bytes: int
    sha256: str
    state: DocumentStateName
    pages: int | None = Field(
        description="Pages, slides of pptx, sheets of xlsx, chapters of epub; null for kinds without pages."
    )
    characters: int | None = Field(description="Length of the text; all offsets count characters.")
    tokens: int | None = Field(description="Of the text alone, with the served model's tokenizer.")
    language: str | None = Field(description="ISO 639-1; null if uncertain.")
    title: str | None
    warnings: list[DocumentWarning]
    error: DocumentError | None
    created_at: datetime
    finalized_at: datetime | None
    expires_at: datetime | None = Field(description="Deleted then; uploading it again extends its life.")


class SeenDocumentReply(DocumentReply):
    """A document with the offsets of its pages."""

    model_config = example(**_DOCUMENT, page_offsets=[0, 1874, 1874, 4410])

    page_offsets: list[int] = Field(description="Character at which each page starts; [] without pages.")


class DocumentListReply(ListReply[DocumentReply]):
    """A page of documents, newest first."""

    model_config = page_example(_DOCUMENT)


class DocumentDeletedReply(GoneReply[Literal["document"]]):
    """A document that was deleted."""

    model_config = gone_example(_DOCUMENT)
