"""Files that a form brings for something new, and their extraction as the page of the draft follows it."""

from datetime import timedelta
from typing import Final
from uuid import UUID

from fastapi import Request
from starlette.responses import Response

from api.console import live
from api.console.documents import drafts
from api.console.documents.drafts import MAX_DOCUMENTS
from api.console.forms import check_may_change, check_origin, check_token
from api.console.live import LivePages
from api.console.page import redirect, render_part
from api.console.session import SignInNeededError, Viewer
from api.documents import uploads
from api.http.form import Form, FormFile, read_files
from api.http.idempotency import IdempotencyHeaders
from api.runtime.services import Services
from jobs import ids
from jobs.documents.queries import DocumentStatus
from jobs.errors import InvalidRequestError, LongbatchError
from jobs.states.document import DocumentState

_NO_KEY: Final = IdempotencyHeaders(key=None, num_retries=None, sender="console", valid_for=timedelta())
_SHOWN_REFUSALS: Final = 3


async def store_files(request: Request, services: Services, viewer: Viewer, *, address: str) -> Response:
    """Store the files of the form as documents, one after the other; those that are none stop no others.

    Args:
        request: the form.
        services: of this process.
        viewer: who sent it.
        address: of the page that goes on with the documents.

    Raises:
        InvalidRequestError: no file is a document.
        ForbiddenError: the viewer may only read.
        ForeignFormError: no page of this session made the form.
    """
    check_may_change(viewer)
    check_origin(request)
    form = Form()
    stored: list[UUID] = []
    refusals: list[str] = []
    # Of the two fields for files the one without any sends a file without a name.
    files = read_files(request, form, file_field="files", max_files=MAX_DOCUMENTS + 1)
    async for file in files:
        check_token(viewer, form.fields)
        if file.filename and len(stored) < MAX_DOCUMENTS:
            try:
                stored.append(await _store(file, services, tenant_id=viewer.caller.tenant_id))
            except SignInNeededError:
                raise
            except LongbatchError as error:
                refusals.append(f"{file.filename}: {error.message}")
    check_token(viewer, form.fields)
    if not stored:
        raise InvalidRequestError(" ".join(refusals[:_SHOWN_REFUSALS]) or "Choose at least one file.")
    address = f"{address}?of={drafts.pack_ids(list(dict.fromkeys(stored)))}"
    if not refusals:
        return redirect(address)
    listed = " ".join(refusals[:_SHOWN_REFUSALS])
    more = f" And {len(refusals) - _SHOWN_REFUSALS} more." if len(refusals) > _SHOWN_REFUSALS else ""
    return redirect(address, done=f"Not stored: {listed}{more}", tone="bad")


async def follow(
    request: Request, services: Services, viewer: Viewer, watched: LivePages, *, of: str, address: str
) -> Response:
    """Stream the extraction of the draft's documents; at its end the page asks for the estimate.

    Args:
        request: of the stream.
        services: of this process.
        viewer: whose documents they are.
        watched: what pages watch.
        of: the documents, as the address holds them.
        address: of the draft's page.
    """
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        draft = await drafts.read(services, viewer, drafts.unpack_ids(of))
        waiting = set(draft.extracting)

        def render_row(document_id: UUID, status: DocumentStatus) -> str:
            if status.state != DocumentState.EXTRACTING:
                waiting.discard(document_id)
            name = ids.document_id(document_id)
            row = render_part(request, "documents/row_live.html", id=name, status=status)
            if waiting:
                return row
            return row + render_part(request, "documents/estimate_live.html", address=address)

        return live.respond(stream, watched.documents, list(waiting), render_row)


async def _store(file: FormFile, services: Services, *, tenant_id: UUID) -> UUID:
    """Store one file as a document; raise as `uploads.store` does."""
    received = await uploads.store(
        file.pieces, Form(filename=file.filename), services, tenant_id=tenant_id, idempotency=_NO_KEY
    )
    return received.document.id
