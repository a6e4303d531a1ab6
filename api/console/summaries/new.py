"""A new summary: files are uploaded, what it would take is estimated, and it starts. All without script."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

from fastapi import Query, Request
from starlette.responses import Response

from api.console.documents import uploading
from api.console.documents.drafts import (
    MAX_DOCUMENTS,
    DocumentDraft,
    once,
    parse_source,
    read,
    unpack_ids,
)
from api.console.error_pages import page_router
from api.console.forms import ChangeDep, check_may_change
from api.console.live import LiveDep
from api.console.page import redirect, render
from api.console.session import Viewer, ViewerDep
from api.console.summaries import drafts
from api.console.summaries.drafts import DEFAULTS
from api.console.summaries.listing import LIST
from api.http.dependencies import ServicesDep
from api.runtime.services import Services
from api.summaries import verbs
from jobs import ids
from jobs.errors import InvalidRequestError
from jobs.models import JsonObject
from jobs.states.summary import OnGap, Style

router = page_router()

NEW: Final = f"{LIST}/new"


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
    options, document_ids = dict(DEFAULTS), unpack_ids(of)
    if document:
        document_ids = [parse_source(document, ids.parse_document_id)]
    if like:
        read_options = partial(
            drafts.read_options_of,
            summary_id=parse_source(like, ids.parse_summary_id),
            tenant_id=viewer.caller.tenant_id,
        )
        options, document_ids = await services.transactions.run(read_options)
    if not document_ids:
        return render(
            request,
            "documents/upload.html",
            title="New summary",
            most=MAX_DOCUMENTS,
            address=NEW,
            command="summarize FOLDER",
        )
    draft = await read(services, viewer, document_ids)
    return await _show_draft(request, services, viewer, draft, options=options)


@router.post("/summaries/new")
async def upload(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Store the files of the form as documents, one after the other; those that are none stop no others."""
    return await uploading.store_files(request, services, viewer, address=NEW)


@router.get("/summaries/new/live")
async def follow_draft(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep, of: str = ""
) -> Response:
    """Stream the extraction of the draft's documents."""
    return await uploading.follow(request, services, viewer, watched, of=of, address=NEW)


@router.post("/summaries/new/estimate")
async def estimate(request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep) -> Response:
    """Show the draft with these options, and what they would take."""
    draft = await read(services, viewer, unpack_ids(form.get("of", "")))
    return await _show_draft(request, services, viewer, draft, options=form)


@router.post("/summaries/new/start")
async def start(request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep) -> Response:
    """Submit the summaries; the same form sent twice submits them once."""
    draft = await read(services, viewer, unpack_ids(form.get("of", "")))
    try:
        asked = drafts.request_of(draft, form)
        made, _ = await verbs.submit(
            services,
            asked,
            tenant_id=viewer.caller.tenant_id,
            idempotency=once(services, viewer, form),
        )
    except InvalidRequestError as error:
        return await _show_draft(
            request, services, viewer, draft, options=form, problem=error.message, status=400
        )
    if len(made) == 1:
        return redirect(f"{LIST}/{made[0]['id']}", done="The summary is submitted.")
    return redirect(LIST, done=f"{len(made):,} summaries are submitted.")


async def _show_draft(
    request: Request,
    services: Services,
    viewer: Viewer,
    draft: DocumentDraft,
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
