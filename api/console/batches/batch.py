"""One batch: how far it is and when it ends, why lines failed, its files; live until it ends."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from secrets import token_urlsafe
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import live
from api.console.batches.listing import LIST
from api.console.error_pages import page_router
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import owner_of, read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.http.identifiers import BatchIdDep
from api.runtime.services import Services
from jobs import batches, files, ids
from jobs.batches.lines import ErrorLine, read_error
from jobs.batches.progress import BatchProgress, read_progress
from jobs.errors import NotFoundError
from jobs.files.stores import make_store
from jobs.models import WebhookEvent
from jobs.models.batch import Batch
from jobs.models.file import File
from jobs.states.batch import ACTIVE, TRANSITIONS, BatchState

router = page_router()

# Of those that were refused, and of those in the error file; the files have the rest.
_MAX_LINES: Final = 50
# That many lines fit in this, with long ids and messages.
_MAX_BYTES: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A batch with what the page shows of it.

    Attributes:
        tenant: its owner's name, for operators.
        files: that can be read now, by their kind.
    """

    batch: Batch
    tenant: str | None
    progress: BatchProgress
    files: Mapping[str, File]
    events: Sequence[WebhookEvent]

    @property
    def may_retry(self) -> bool:
        """Whether it has ended, and both files that a retry reads are there."""
        return self.batch.is_terminal and {"input", "errors"} <= self.files.keys()

    @property
    def may_cancel(self) -> bool:
        """Whether it is not ending already."""
        return self.batch.state in TRANSITIONS["cancel"][0]


@router.get("/batches/{batch_id}")
async def show_batch(
    request: Request, batch_id: BatchIdDep, services: ServicesDep, viewer: ViewerDep, show: str = ""
) -> Response:
    """Show the batch; with `show=errors` the first lines of its error file too."""
    found = await read_for(viewer, services, partial(read_batch, batch_id=batch_id, viewer=viewer))
    batch = found.batch
    name = ids.batch_id(batch_id)
    address = f"{LIST}/{name}"
    failed: Sequence[ErrorLine] = ()
    if show == "errors" and "errors" in found.files:
        failed = await _first_errors(services, viewer, found.files["errors"])
    refused = batch.errors or []
    return render(
        request,
        "batches/one.html",
        title=f"Batch {name[:18]}…",
        id=name,
        found=found,
        batch=batch,
        progress=found.progress,
        is_own=batch.tenant_id == viewer.caller.tenant_id,
        address=address,
        live_address=f"{address}/live" if batch.state in ACTIVE else None,
        retry_of=batch.retry_of and ids.batch_id(batch.retry_of),
        moments=moments_of(batch),
        refused=refused[:_MAX_LINES],
        num_refused=len(refused),
        refused_codes=Counter(str(each["code"]) for each in refused).most_common(),
        show=show,
        failed=failed,
        once=token_urlsafe(),
    )


@router.get("/batches/{batch_id}/live")
async def follow_batch(
    request: Request, batch_id: BatchIdDep, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream how far the batch is; reload the page at each of its states."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        found = await read_for(viewer, services, partial(read_batch, batch_id=batch_id, viewer=viewer))
        state = found.batch.state
        address = f"{LIST}/{ids.batch_id(batch_id)}"
        reload = render_part(request, "reload_live.html", address=address, part="#batch")

        def render_change(_: UUID, progress: BatchProgress) -> str:
            if progress.state != state:
                return reload
            return render_part(
                request, "batches/progress_live.html", id=ids.batch_id(batch_id), progress=progress
            )

        followed = [batch_id] if state in ACTIVE else []
        return live.respond(stream, watched.batches, followed, render_change, ended=reload)


def read_batch(session: Session, *, batch_id: UUID, viewer: Viewer) -> BatchPage:
    """Read the batch, its files and its events.

    Raises:
        NotFoundError: the viewer sees no such batch.
    """
    owner = owner_of(session, viewer, batch_id, of=(Batch.id, Batch.tenant_id))
    batch = batches.get(session, batch_id, tenant_id=owner)
    names = tenant_names(session, viewer, [owner])
    events = select(WebhookEvent).where(WebhookEvent.batch_id == batch_id, WebhookEvent.tenant_id == owner)
    return BatchPage(
        batch=batch,
        tenant=names.get(owner),
        progress=read_progress(session, [batch_id])[batch_id],
        files=read_files(session, batch),
        events=session.scalars(events.order_by(WebhookEvent.id)).all(),
    )


def read_files(session: Session, batch: Batch) -> dict[str, File]:
    """Read the batch's files that can be read now, by their kind: input, output, errors."""
    found = {}
    for kind, file_id in (
        ("input", batch.input_file_id),
        ("output", batch.output_file_id),
        ("errors", batch.error_file_id),
    ):
        if file_id is not None:
            try:
                found[kind] = files.get(session, file_id, tenant_id=batch.tenant_id)
            except NotFoundError:  # deleted or expired
                continue
    return found


def moments_of(batch: Batch) -> list[tuple[str, datetime]]:
    """List what happened to the batch and when, in order."""
    known = [("created", batch.created_at)]
    for state in BatchState:
        at: datetime | None = getattr(batch, f"{state}_at", None)
        if at is not None:
            known.append((state.replace("_", " "), at))
    return sorted(known, key=lambda each: each[1])


async def _first_errors(services: Services, viewer: Viewer, file: File) -> Sequence[ErrorLine]:
    """Read the first whole lines of an error file."""
    parts = await read_for(
        viewer, services, partial(files.load_parts, file_id=file.id, offset=0, max_bytes=_MAX_BYTES)
    )
    if not parts:
        return ()
    raw = await services.cpu.store(files.unpack, parts, make_store(services.settings), offset=0)
    whole = raw[: file.num_bytes].split(b"\n")[:-1]
    return [read_error(line) for line in islice(whole, _MAX_LINES)]
