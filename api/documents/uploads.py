"""Streams uploaded documents, as a form or as the whole body, into storage."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session
from starlette.requests import Request

from api.http import part_uploads
from api.http.form import Form, read_form
from api.http.idempotency import IdempotencyHeaders
from api.runtime.services import Services
from jobs import documents, doorbell, files
from jobs.database.base import JsonObject
from jobs.documents import NewDocument
from jobs.documents.encodings import ENCODED_KINDS, find_encoding
from jobs.documents.kinds import HEAD_BYTES, TAIL_BYTES, UploadHints, find_kind
from jobs.errors import (
    InvalidRequestError,
    MissingFieldError,
    TooLargeError,
    UnavailableError,
    UnknownFieldError,
)
from jobs.models.document import Document
from jobs.states.document import DocumentKind
from jobs.tenants.idempotency import RequestKind

_FIELDS: Final = frozenset({"kind", "encoding"})
_MAX_FILENAME: Final = 255


class DocumentTooLargeError(TooLargeError):
    """The document has more bytes than this server accepts."""

    code = "document_too_large"


class DocumentEmptyError(InvalidRequestError):
    """The document has no bytes."""

    code = "document_empty"


@dataclass(frozen=True, slots=True)
class Received:
    """An uploaded document.

    Attributes:
        is_new: its extraction starts now; False: the document existed before.
        is_replay: an earlier request with the same Idempotency-Key made it.
    """

    document: Document
    is_new: bool
    is_replay: bool = False


@dataclass(slots=True)
class _Passed:
    """Digest, head and tail of the bytes streamed through."""

    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    head: bytes = b""
    tail: bytes = b""

    async def watch(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass the pieces through unchanged, and record them."""
        async for piece in pieces:
            self.digest.update(piece)
            if len(self.head) < HEAD_BYTES:
                self.head += piece[: HEAD_BYTES - len(self.head)]
            self.tail = (self.tail + piece[-TAIL_BYTES:])[-TAIL_BYTES:]
            yield piece


async def receive(
    request: Request,
    services: Services,
    *,
    tenant_id: UUID,
    idempotency: IdempotencyHeaders,
    filename: str,
    kind: str,
    encoding: str = "",
) -> Received:
    """Store the document in the form's field `file`, or in the whole body.

    Args:
        request: not read yet.
        services: of the service.
        tenant_id: the owner of the document.
        idempotency: idempotency of the request.
        filename: of a file sent as the body; a form has its own.
        kind: requested by the caller, empty if none; a form may have its own.
        encoding: of a text, likewise.

    Raises:
        IdempotencyConflictError: the key was used for another document.
        InvalidRequestError: the form is invalid, or this kind of file is not supported.
        TooLargeError: the document has more bytes than this server accepts.
    """
    _refuse_declared(request, limit=services.settings.documents.max_bytes)
    media_type = request.headers.get("content-type", "")
    form = Form()
    if media_type.lower().startswith("multipart/"):
        pieces, media_type = read_form(request, form, file_field="file"), ""
    else:
        pieces, form.filename = request.stream(), _safe(filename)
    return await store(
        pieces,
        form,
        services,
        tenant_id=tenant_id,
        idempotency=idempotency,
        kind=kind,
        encoding=encoding,
        media_type=media_type,
    )


async def store(
    pieces: AsyncIterator[bytes],
    form: Form,
    services: Services,
    *,
    tenant_id: UUID,
    idempotency: IdempotencyHeaders,
    kind: str = "",
    encoding: str = "",
    media_type: str = "",
) -> Received:
    """Store the document with these bytes; raises as `receive` does."""
    passed = _Passed()
    file_id = (await services.transact(documents.create_file, tenant_id=tenant_id)).id
    try:
        limit = services.settings.documents.max_bytes
        num_bytes = await part_uploads.store(
            passed.watch(pieces),
            services,
            file_id=file_id,
            tenant_id=tenant_id,
            limit=limit,
            too_large=_too_large(limit),
        )
        found_kind = _find_kind(form, passed, kind, media_type)
        named = find_encoding(form.fields.get("encoding", encoding))
        new = NewDocument(
            file_id=file_id,
            sha256=passed.digest.digest(),
            num_bytes=num_bytes,
            kind=found_kind,
            filename=form.filename or "",
            encoding=named if found_kind in ENCODED_KINDS else "",
        )
        lifetime = timedelta(days=services.settings.documents.retention_days)
        received = await services.transact(
            _finish, new=new, idempotency=idempotency, tenant_id=tenant_id, lifetime=lifetime
        )
    except BaseException:
        # Also when the sender leaves; what cannot be discarded now is cleaned up later.
        with suppress(UnavailableError):
            await services.transact(files.discard, file_id=file_id, tenant_id=tenant_id)
        raise
    if received.is_new:
        services.doorbell.ring(doorbell.SERVICE)
    return received


def _finish(
    session: Session,
    *,
    new: NewDocument,
    idempotency: IdempotencyHeaders,
    tenant_id: UUID,
    lifetime: timedelta,
) -> Received:
    def finish(session: Session) -> Received:
        document, is_new = documents.finish_upload(session, new, tenant_id=tenant_id, lifetime=lifetime)
        return Received(document, is_new)

    digest = hashlib.sha256(new.sha256 + f"{new.kind} {new.filename} {new.encoding}".encode()).digest()
    received, is_replay = idempotency.run(session, digest, finish, tenant_id=tenant_id, kind=_DOCUMENT)
    if is_replay:
        files.discard(session, file_id=new.file_id, tenant_id=tenant_id)
    return Received(received.document, received.is_new, is_replay)


def _find(session: Session, recorded: UUID | JsonObject) -> Received | None:
    document = session.get(Document, recorded)
    return Received(document, is_new=False) if document is not None and document.deleted_at is None else None


_DOCUMENT: Final[RequestKind[Received]] = RequestKind(
    "document", record=lambda received: received.document.id, find=_find
)


def _refuse_declared(request: Request, *, limit: int) -> None:
    """Refuse a body whose declared size is far too large, without reading it.

    Raises:
        DocumentTooLargeError: the declared size exceeds what would be drained.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > part_uploads.DRAINED_LIMITS * limit:
        raise _too_large(limit)


def _too_large(limit: int) -> DocumentTooLargeError:
    return DocumentTooLargeError(f"A document may have at most {limit} bytes.", param="file")


def _find_kind(form: Form, passed: _Passed, kind: str, media_type: str) -> DocumentKind:
    """Detect the kind of the uploaded file.

    Raises:
        InvalidRequestError: the form is invalid, or this kind of file is not supported.
    """
    wanted = _check(form, kind)
    if not passed.head:
        raise DocumentEmptyError(param="file")
    return find_kind(UploadHints(passed.head, passed.tail, form.filename or "", media_type, wanted))


def _check(form: Form, kind: str) -> DocumentKind | None:
    """Validate the form and return the kind that the caller requests, if any."""
    if form.filename is None:
        raise MissingFieldError("The field 'file' is required.", param="file")
    if unknown := sorted(form.fields.keys() - _FIELDS):
        shown = "".join(char if char.isprintable() else "?" for char in unknown[0][:64])
        raise UnknownFieldError(f"There is no field {shown!r} here.", param=shown)
    named = form.fields.get("kind", kind)
    if not named:
        return None
    try:
        return DocumentKind(named)
    except ValueError:
        listed = ", ".join(DocumentKind)
        raise InvalidRequestError(f"The kind must be one of {listed}.", param="kind") from None


def _safe(filename: str) -> str:
    return filename.encode(errors="replace").decode().replace("\0", "\ufffd")[-_MAX_FILENAME:]
