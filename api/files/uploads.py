"""Streams uploads into storage part by part, with flat memory; a file is visible only once complete."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session
from starlette.requests import Request

from api.http.fields import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS
from api.http.form import Form, read_form
from api.http.idempotency import IdempotencyHeaders
from api.http.part_uploads import store
from api.runtime.services import Services
from jobs import files
from jobs.database.base import JsonObject
from jobs.errors import (
    InvalidRequestError,
    MissingFieldError,
    TooLargeError,
    UnavailableError,
    UnknownFieldError,
)
from jobs.models.file import File
from jobs.states.file import FileState
from jobs.tenants.idempotency import RequestKind

_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"
_FIELDS: Final = frozenset({"purpose", _ANCHOR, _SECONDS})


async def receive(
    request: Request, services: Services, *, tenant_id: UUID, idempotency: IdempotencyHeaders
) -> File:
    """Store the file of this form durably, once for each Idempotency-Key.

    Raises:
        IdempotencyConflictError: the key was used for another file.
        InvalidRequestError: the form is invalid; `param` names the field.
        TooLargeError: the file has more bytes than this server accepts.
    """
    form = Form()
    digest = hashlib.sha256()
    pieces = read_form(request, form, file_field="file")
    if idempotency.is_given:
        pieces = _hashed(pieces, digest)
    file = await services.transact(
        files.create, tenant_id=tenant_id, purpose=files.INPUT, filename="", state=FileState.UPLOADING
    )
    file_id = file.id
    try:
        limit = services.settings.files.max_bytes
        too_large = TooLargeError(f"A file may have at most {limit} bytes.", param="file")
        num_bytes = await store(
            pieces, services, file_id=file_id, tenant_id=tenant_id, limit=limit, too_large=too_large
        )
        lifetime = _lifetime(form.fields, default=timedelta(days=services.settings.files.retention_days))
        _check(form)
        finish = partial(
            files.finish_upload,
            file_id=file_id,
            tenant_id=tenant_id,
            filename=form.filename or "",
            num_bytes=num_bytes,
            lifetime=lifetime,
            purpose=form.fields["purpose"],
        )
        digest.update(repr((form.filename, sorted(form.fields.items()))).encode())
        return await services.transact(
            _finish_once,
            digest.digest(),
            finish=finish,
            idempotency=idempotency,
            file_id=file_id,
            tenant_id=tenant_id,
        )
    except BaseException:
        # Also when the sender leaves; what cannot be discarded now is cleaned up later.
        with suppress(UnavailableError):
            await services.transact(files.discard, file_id=file_id, tenant_id=tenant_id)
        raise


async def _hashed(pieces: AsyncIterator[bytes], digest: "hashlib._Hash") -> AsyncIterator[bytes]:
    async for piece in pieces:
        digest.update(piece)
        yield piece


def _finish_once(
    session: Session,
    sha256: bytes,
    *,
    finish: Callable[[Session], File],
    idempotency: IdempotencyHeaders,
    file_id: UUID,
    tenant_id: UUID,
) -> File:
    """Complete the file, or discard it for the one that an earlier request made."""
    file, is_replay = idempotency.run(session, sha256, finish, tenant_id=tenant_id, kind=_FILE)
    if is_replay:
        files.discard(session, file_id=file_id, tenant_id=tenant_id)
    return file


def _find_file(session: Session, recorded: UUID | JsonObject) -> File | None:
    file = session.get(File, recorded)
    return file if file is not None and file.deleted_at is None else None


_FILE: Final[RequestKind[File]] = RequestKind("file", record=lambda file: file.id, find=_find_file)


def _check(form: Form) -> None:
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise MissingFieldError("The field 'purpose' is required.", param="purpose")
    if purpose not in files.UPLOADED:
        listed = " or ".join(repr(each) for each in files.UPLOADED)
        raise InvalidRequestError(f"The purpose must be {listed}.", param="purpose")
    if form.filename is None:
        raise MissingFieldError("The field 'file' is required.", param="file")
    # Clients that send bytes alone name them `upload`, as OpenAI's do.
    is_batch = purpose == files.INPUT
    if is_batch and "." in form.filename and not form.filename.lower().endswith(".jsonl"):
        raise InvalidRequestError("Invalid file format for Batch API. Must be .jsonl", param="file")
    if unknown := sorted(form.fields.keys() - _FIELDS):
        shown = "".join(char if char.isprintable() else "?" for char in unknown[0][:64])
        raise UnknownFieldError(f"There is no field {shown!r} here.", param=shown)


def _lifetime(fields: Mapping[str, str], *, default: timedelta) -> timedelta:
    seconds, anchor = fields.get(_SECONDS), fields.get(_ANCHOR)
    if seconds is None and anchor is None:
        return default
    if anchor != "created_at":
        raise InvalidRequestError("The anchor must be 'created_at'.", param=_ANCHOR)
    if seconds is None or not seconds.isdecimal() or len(seconds) > 9:
        raise InvalidRequestError("Must be a number of seconds.", param=_SECONDS)
    if not MIN_EXPIRY_SECONDS <= int(seconds) <= MAX_EXPIRY_SECONDS:
        raise InvalidRequestError(
            f"Must be {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS} seconds.", param=_SECONDS
        )
    return timedelta(seconds=int(seconds))
