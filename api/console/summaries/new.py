"""A new summary: files are uploaded, what it would take is estimated, and it starts. All without script."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import Query, Request
from starlette.responses import Response

from api.console import live
from api.console.error_pages import page_router
from api.console.forms import ChangeDep, check_may_change, check_origin, check_token
from api.console.live import LiveDep
from api.console.page import redirect, render, render_part
from api.console.session import SignInNeededError, Viewer, ViewerDep
from api.console.summaries import drafts
from api.console.summaries.drafts import DEFAULTS, MAX_DOCUMENTS, SummaryDraft
from api.console.summaries.listing import LIST
from api.documents import uploads
from api.http.dependencies import ServicesDep
from api.http.form import Form, FormFile, read_files
from api.http.idempotency import IdempotencyHeaders
from api.http.identifiers import parse_field
from api.runtime.services import Services
from api.summaries import verbs
from jobs import ids
from jobs.documents.queries import DocumentStatus
from jobs.errors import InvalidRequestError, LongbatchError
from jobs.models import JsonObject
from jobs.states.document import DocumentState
from jobs.states.summary import OnGap, Style

router = page_router()

NEW: Final = f"{LIST}/new"
_NO_KEY: Final = IdempotencyHeaders(key=None, num_retries=None, sender="console", valid_for=timedelta())
_SHOWN_REFUSALS: Final = 3


@router.get("/summaries/new")
async def show_new(
    request: Request,
    services: ServicesDep,
    viewer: ViewerDep,
    of: str = "",
    document: Annotated[str, Query(max_length=64)] = "",
    like: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Show the form for files; or, of documents or an earlier summary, the options and the estimate."""
    check_may_change(viewer)
    options, document_ids = dict(DEFAULTS), drafts.unpack_ids(of)
    if document:
        document_ids = [_parse(document, ids.parse_document_id)]
    if like:
        read = partial(
            drafts.read_options_of,
            summary_id=_parse(like, ids.parse_summary_id),
            tenant_id=viewer.caller.tenant_id,
        )
        options, document_ids = await services.transactions.run(read)
    if not document_ids:
        return render(request, "summaries/upload.html", title="New summary", most=MAX_DOCUMENTS)
    draft = await _read(services, viewer, document_ids)
    return await _show_draft(request, services, viewer, draft, options=options)


@router.post("/summaries/new")
async def upload(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Store the files of the form as documents, one after the other; those that are none stop no others."""
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
    address = f"{NEW}?of={drafts.pack_ids(list(dict.fromkeys(stored)))}"
    if not refusals:
        return redirect(address)
    listed = " ".join(refusals[:_SHOWN_REFUSALS])
    more = f" And {len(refusals) - _SHOWN_REFUSALS} more." if len(refusals) > _SHOWN_REFUSALS else ""
    return redirect(address, done=f"Not stored: {listed}{more}", tone="bad")


@router.get("/summaries/new/live")
async def follow_draft(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep, of: str = ""
) -> Response:
    """Stream the extraction of the draft's documents; at its end the page asks for the estimate."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        draft = await _read(services, viewer, drafts.unpack_ids(of))
        waiting = set(draft.extracting)

        def render_row(document_id: UUID, status: DocumentStatus) -> str:
            if status.state != DocumentState.EXTRACTING:
                waiting.discard(document_id)
            name = ids.document_id(document_id)
            row = render_part(request, "documents/row_live.html", id=name, status=status)
            return row if waiting else row + render_part(request, "summaries/estimate_live.html")

        return live.respond(stream, watched.documents, list(waiting), render_row)


@router.post("/summaries/new/estimate")
async def estimate(request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep) -> Response:
    """Show the draft with these options, and what they would take."""
    draft = await _read(services, viewer, drafts.unpack_ids(form.get("of", "")))
    return await _show_draft(request, services, viewer, draft, options=form)


@router.post("/summaries/new/start")
async def start(request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep) -> Response:
    """Submit the summaries; the same form sent twice submits them once."""
    draft = await _read(services, viewer, drafts.unpack_ids(form.get("of", "")))
    idempotency = IdempotencyHeaders(
        key=f"console {form.get('once', '')[:64]}",
        num_retries=None,
        sender=viewer.caller.key_id.hex,
        valid_for=timedelta(hours=services.settings.jobs.idempotency_hours),
    )
    try:
        asked = drafts.request_of(draft, form)
        made, _ = await verbs.submit(
            services, asked, tenant_id=viewer.caller.tenant_id, idempotency=idempotency
        )
    except InvalidRequestError as error:
        return await _show_draft(
            request, services, viewer, draft, options=form, problem=error.message, status=400
        )
    if len(made) == 1:
        return redirect(f"{LIST}/{made[0]['id']}", done="The summary is submitted.")
    return redirect(LIST, done=f"{len(made):,} summaries are submitted.")


async def _read(services: Services, viewer: Viewer, document_ids: list[UUID]) -> SummaryDraft:
    tenant_id = viewer.caller.tenant_id
    return await services.transact(drafts.read_draft, document_ids=document_ids, tenant_id=tenant_id)


async def _show_draft(
    request: Request,
    services: Services,
    viewer: Viewer,
    draft: SummaryDraft,
    *,
    options: Mapping[str, str],
    problem: str | None = None,
    status: int = 200,
) -> Response:
    estimated: JsonObject | None = None
    if problem is None:
        found = await drafts.try_estimate(services, draft, options, tenant_id=viewer.caller.tenant_id)
        estimated, problem = found
    return render(
        request,
        "summaries/draft.html",
        title="New summary",
        status=status,
        draft=draft,
        rows=[(ids.document_id(each.id), each) for each in draft.documents],
        options=options,
        estimated=estimated,
        problem=problem,
        styles=tuple(Style),
        gaps={OnGap.SKIP: "go on without it", OnGap.FAIL: "fail"},
        once=ids.uuid7().hex,
        address=NEW,
        live_address=f"{NEW}/live?of={draft.packed}" if draft.extracting else None,
    )


async def _store(file: FormFile, services: Services, *, tenant_id: UUID) -> UUID:
    """Store one file as a document; raise as `uploads.store` does."""
    received = await uploads.store(
        file.pieces, Form(filename=file.filename), services, tenant_id=tenant_id, idempotency=_NO_KEY
    )
    return received.document.id


def _parse(text: str, parse: Callable[[str], UUID]) -> UUID:
    return parse_field(text, parse, param="of", message="There is no such document or summary.")
