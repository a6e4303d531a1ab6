"""What is done with one batch: download its files, cancel it, retry its failed lines."""

from datetime import timedelta
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import Path
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.batches import verbs
from api.console.batches.batch import read_files
from api.console.batches.listing import LIST
from api.console.error_pages import page_router
from api.console.forms import ChangeDep
from api.console.page import redirect
from api.console.reading import owner_of, read_for
from api.console.session import Viewer, ViewerDep
from api.files import contents
from api.http.dependencies import ServicesDep
from api.http.identifiers import BatchIdDep
from jobs import batches, ids
from jobs.errors import InvalidRequestError, NotFoundError
from jobs.models.batch import Batch
from jobs.models.file import File
from jobs.tenants.idempotency import IdempotencyGuard

router = page_router()

# A page from which a button is pressed again later makes a new batch.
_ONCE_FOR: Final = timedelta(hours=24)
_MAX_ONCE: Final = 64


@router.get("/batches/{batch_id}/files/{kind}")
async def download_file(
    batch_id: BatchIdDep,
    kind: Annotated[str, Path(max_length=10)],
    services: ServicesDep,
    viewer: ViewerDep,
) -> Response:
    """Send a file of the batch, as far as it is written."""
    file = await read_for(viewer, services, partial(read_file, batch_id=batch_id, kind=kind, viewer=viewer))
    run = services.transactions.run_across if viewer.is_operator else services.transactions.run
    return await contents.response(services, file, run, name=f"{ids.batch_id(batch_id)}_{kind}.jsonl")


@router.post("/batches/{batch_id}/cancel")
async def cancel_batch(
    batch_id: BatchIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Cancel the batch; what has completed stays in its output file."""
    batch = await verbs.cancel(services, batch_id, tenant_id=viewer.caller.tenant_id)
    words = "The batch is being cancelled; lines that have completed stay in its output file."
    return redirect(_address(batch.id), done=words)


@router.post("/batches/{batch_id}/retry")
async def retry_batch(
    batch_id: BatchIdDep, services: ServicesDep, viewer: ViewerDep, form: ChangeDep
) -> Response:
    """Make a new batch of the lines that did not complete; a form that is sent twice makes one."""
    once = form.get("once", "")
    if not 1 <= len(once) <= _MAX_ONCE:
        raise InvalidRequestError("The form is incomplete; open its page again.", param="once")
    guard = IdempotencyGuard(f"console\n{once}", batch_id.bytes, _ONCE_FOR)
    batch = await verbs.retry(services, batch_id, tenant_id=viewer.caller.tenant_id, guard=guard)
    return redirect(_address(batch.id), done="The lines that did not complete run again, as this batch.")


def read_file(session: Session, *, batch_id: UUID, kind: str, viewer: Viewer) -> File:
    """Read a file of a batch.

    Raises:
        NotFoundError: the viewer sees no such batch, or it has no such file now.
    """
    owner = owner_of(session, viewer, batch_id, of=(Batch.id, Batch.tenant_id))
    found = read_files(session, batches.get(session, batch_id, tenant_id=owner)).get(kind)
    if found is None:
        raise NotFoundError("There is no such file.")
    return found


def _address(batch_id: UUID) -> str:
    return f"{LIST}/{ids.batch_id(batch_id)}"
