"""New questions: documents are uploaded or chosen, what asking takes is estimated, and it starts."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.answers import verbs
from api.answers.requests import AnswersEstimateRequest, AnswersRequest
from api.console.answers.listing import LIST
from api.console.documents import uploading
from api.console.documents.drafts import (
    MAX_DOCUMENTS,
    DocumentDraft,
    once,
    parse_fields,
    parse_source,
    read,
    unpack_ids,
    validated,
)
from api.console.error_pages import page_router
from api.console.forms import ChangeDep, check_may_change
from api.console.live import LiveDep
from api.console.page import redirect, render
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.runtime.services import Services
from jobs import ids, questions
from jobs.errors import InvalidRequestError, LongbatchError
from jobs.models import JsonObject
from jobs.questions import queries, trees
from jobs.questions.forest import DEFAULT_LENGTH
from jobs.views import PRIORITY_NAMES

router = page_router()

NEW: Final = f"{LIST}/new"
_DEFAULTS: Final[Mapping[str, str]] = {"length": str(DEFAULT_LENGTH)}
_NUMBERS: Final = ("length", "chunk_tokens")
_TEXTS: Final = ("priority", "custom_id")


@router.get("/answers/new")
async def show_new(
    request: Request,
    services: ServicesDep,
    viewer: ViewerDep,
    of: str = "",
    document: Annotated[str, Query(max_length=64)] = "",
    like: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Show the form for files; or, of documents or earlier answers, the questions and the estimate."""
    check_may_change(viewer)
    fields, document_ids = dict(_DEFAULTS), unpack_ids(of)
    if document:
        document_ids = [parse_source(document, ids.parse_document_id)]
    if like:
        answers_id, tenant_id = parse_source(like, ids.parse_answers_id), viewer.caller.tenant_id
        find = partial(_read_fields_of, answers_id=answers_id, tenant_id=tenant_id)
        fields, document_ids = await services.transactions.run(find)
    if not document_ids:
        return render(
            request,
            "documents/upload.html",
            title="New questions",
            most=MAX_DOCUMENTS,
            address=NEW,
            command="ask FOLDER --questions FILE",
        )
    draft = await read(services, viewer, document_ids)
    return await _show_draft(request, services, viewer, draft, fields=fields)


@router.post("/answers/new")
async def upload(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Store the files of the form as documents, one after the other; those that are none stop no others."""
    return await uploading.store_files(request, services, viewer, address=NEW)


@router.get("/answers/new/live")
async def follow_draft(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep, of: str = ""
) -> Response:
    """Stream the extraction of the draft's documents."""
    return await uploading.follow(request, services, viewer, watched, of=of, address=NEW)


@router.post("/answers/new/estimate")
async def estimate(request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep) -> Response:
    """Show the draft with these questions, and what they would take."""
    draft = await read(services, viewer, unpack_ids(form.get("of", "")))
    return await _show_draft(request, services, viewer, draft, fields=form)


@router.post("/answers/new/start")
async def start(request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep) -> Response:
    """Ask the questions; the same form sent twice asks them once."""
    draft = await read(services, viewer, unpack_ids(form.get("of", "")))
    try:
        draft.require_text()
        asked = validated(AnswersRequest, {"documents": draft.usable} | _parse(form))
        made, _ = await verbs.submit(
            services,
            asked,
            tenant_id=viewer.caller.tenant_id,
            idempotency=once(services, viewer, form),
        )
    except InvalidRequestError as error:
        return await _show_draft(
            request, services, viewer, draft, fields=form, problem=error.message, status=400
        )
    first = f"{LIST}/{made[0]['id']}"
    if len(made) == 1:
        return redirect(first, done="The questions are submitted.")
    return redirect(f"{first}/table", done=f"{len(made):,} documents are asked.")


def _parse(form: Mapping[str, str]) -> dict[str, object]:
    """Read the fields of a form: a question a line; empty fields are not chosen.

    Raises:
        InvalidRequestError: a field that is a number has none.
    """
    listed = [each.strip() for each in form.get("questions", "").splitlines()]
    chosen = parse_fields(form, numbers=_NUMBERS, texts=_TEXTS)
    return chosen | {"questions": [each for each in listed if each]}


def _read_fields_of(
    session: Session, *, answers_id: UUID, tenant_id: UUID
) -> tuple[dict[str, str], list[UUID]]:
    """Read earlier answers as the fields of a form, and the documents that were asked together.

    Raises:
        NotFoundError: the tenant has no such answers.
    """
    asked = questions.get(session, answers_id, tenant_id=tenant_id)
    together = trees.asked_together(session, asked)[:MAX_DOCUMENTS]
    values = {
        # A line break in a question would make two of it.
        "questions": "\n".join(" ".join(each.split()) for each in asked.questions or []),
        "length": asked.length,
        "chunk_tokens": asked.chunk_tokens,
        "priority": PRIORITY_NAMES[asked.rank],
        "custom_id": asked.custom_id,
    }
    fields = {name: str(value) for name, value in values.items() if value is not None}
    return fields, queries.read_documents(session, together)


async def _show_draft(
    request: Request,
    services: Services,
    viewer: Viewer,
    draft: DocumentDraft,
    *,
    fields: Mapping[str, str],
    problem: str | None = None,
    status: int = 200,
) -> Response:
    estimated: JsonObject | None = None
    if problem is None:
        estimated, problem = await _try_estimate(services, draft, fields, viewer=viewer)
    return render(
        request,
        "answers/draft.html",
        title="New questions",
        status=status,
        draft=draft,
        rows=[(ids.document_id(each.id), each) for each in draft.documents],
        options=fields,
        estimated=estimated,
        problem=problem,
        once=ids.uuid7().hex,
        address=NEW,
        live_address=f"{NEW}/live?of={draft.packed}" if draft.extracting else None,
    )


async def _try_estimate(
    services: Services, draft: DocumentDraft, form: Mapping[str, str], *, viewer: Viewer
) -> tuple[JsonObject | None, str | None]:
    """Estimate once all documents are read and there is a question; or tell why there is no estimate."""
    if draft.extracting or not draft.documents:
        return None, None
    try:
        draft.require_text()
        given = _parse(form)
        if not given["questions"]:
            return None, None
        asked = validated(AnswersEstimateRequest, {"documents": draft.usable} | given)
        return await verbs.estimate(services, asked, tenant_id=viewer.caller.tenant_id), None
    except LongbatchError as error:
        return None, error.message
