"""The public shape of documents."""

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from jobs import ids
from jobs.database.base import JsonObject
from jobs.models.document import Document
from jobs.states.document import DocumentErrorCode, DocumentKind, DocumentState, DocumentWarningCode
from jobs.validation import choice, documented_as
from jobs.views import Moment, optional_rfc3339, rfc3339

KindName = Annotated[str, choice(DocumentKind)]
DocumentStateName = Annotated[str, choice(state for state in DocumentState if state != DocumentState.DELETED)]


class DocumentWarning(TypedDict):
    """A warning about the extracted text."""

    code: DocumentWarningCode
    message: str
    pages: NotRequired[
        Annotated[list[int] | None, Field(description="Pages concerned, counted from 1; the first thousand.")]
    ]


class ResultWarning(DocumentWarning):
    """A warning about the text of a document that a result was made from."""

    document_id: str


class AttachmentReply(TypedDict):
    """A file within a document, which is a document of its own."""

    filename: str
    document_id: str


class DocumentError(TypedDict):
    """Why a document has no text."""

    code: DocumentErrorCode
    message: str


class DocumentObject(TypedDict):
    """A document as JSON; times are RFC 3339 in UTC."""

    id: str
    object: Literal["document"]
    filename: Annotated[str, Field(description="As first uploaded.")]
    kind: KindName
    bytes: int
    sha256: str
    state: DocumentStateName
    pages: Annotated[
        int | None,
        Field(
            description="Pages, slides of pptx, sheets of xlsx, chapters of epub; null for kinds without"
            " pages."
        ),
    ]
    characters: Annotated[int | None, Field(description="Length of the text; all offsets count characters.")]
    tokens: Annotated[int | None, Field(description="Of the text alone, with the served model's tokenizer.")]
    language: Annotated[str | None, Field(description="ISO 639-1; null if uncertain.")]
    title: str | None
    warnings: list[Annotated[JsonObject, documented_as(DocumentWarning)]]
    attachments: list[Annotated[JsonObject, documented_as(AttachmentReply)]]
    error: Annotated[JsonObject, documented_as(DocumentError)] | None
    created_at: Moment
    finalized_at: Moment | None
    expires_at: Annotated[
        Moment | None, Field(description="Deleted then; uploading it again extends its life.")
    ]


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
        attachments=document.attachments,
        error=document.error,
        created_at=rfc3339(document.created_at),
        finalized_at=optional_rfc3339(document.finalized_at),
        expires_at=optional_rfc3339(document.expires_at),
    )
