"""A new subject of any kind, without script: files are uploaded, what it takes is estimated, it starts."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Protocol
from uuid import UUID

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
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
from api.console.subjects.kinds import SubjectPages
from api.http.dependencies import ServicesDep
from api.http.idempotency import IdempotencyHeaders
from api.runtime.services import Services
from jobs import ids
from jobs.errors import InvalidRequestError, LongbatchError
from jobs.models import JsonObject

# The fields of a form, and the documents that they are about.
Earlier = tuple[dict[str, str], Sequence[UUID]]


class ReadEarlier(Protocol):
    """Reads an earlier one as the fields of a form, with the documents that it was about."""

    def __call__(self, session: Session, row_id: UUID, /, *, tenant_id: UUID) -> Earlier:
        """Raise NotFoundError if the tenant has none of this id."""


class EstimateDraft(Protocol):
    """Estimates what a form asks for."""

    def __call__(
        self, services: Services, draft: DocumentDraft, form: Mapping[str, str], /, *, tenant_id: UUID
    ) -> Awaitable[JsonObject | None]:
        """Return None if it asks for nothing yet; raise what its page says."""


class SubmitDraft(Protocol):
    """Submits what a form asks for."""

    def __call__(
        self,
        services: Services,
        draft: DocumentDraft,
        form: Mapping[str, str],
        /,
        *,
        tenant_id: UUID,
        idempotency: IdempotencyHeaders,
    ) -> Awaitable[Sequence[str]]:
        """Return the public ids of what was made; raise InvalidRequestError for what the form must change."""


@dataclass(frozen=True, slots=True)
class NewSubject:
    """How new ones of a kind are asked for.

    Attributes:
        title: of the pages.
        command: that takes any number of documents.
        template: of the page with the options and the estimate.
        defaults: the fields of a form that nobody filled in.
        started: what the page of a single one says.
        several: the same of several; `{num}` is their number.
        together: where the page of several is, below the first one; None: it is the list.
        values: for the template.
    """

    pages: SubjectPages
    title: str
    command: str
    template: str
    defaults: Mapping[str, str]
    read_earlier: ReadEarlier
    estimate: EstimateDraft
    submit: SubmitDraft
    started: str
    several: str
    together: str | None = None
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The address of the first page."""
        return f"{self.pages.address}/new"

    def after(self, made: Sequence[str]) -> Response:
        """Lead to what was made."""
        first = f"{self.pages.address}/{made[0]}"
        if len(made) == 1:
            return redirect(first, done=self.started)
        several = self.pages.address if self.together is None else f"{first}/{self.together}"
        return redirect(several, done=self.several.format(num=f"{len(made):,}"))


def new_routes(of: NewSubject) -> APIRouter:
    """Make the routes that ask for new ones of a kind."""
    router = page_router()
    place = f"{of.pages.path}/new"

    @router.get(place)
    async def show_new(
        request: Request,
        services: ServicesDep,
        viewer: ViewerDep,
        given: Annotated[str, Query(alias="of")] = "",
        document: Annotated[str, Query(max_length=64)] = "",
        like: Annotated[str, Query(max_length=64)] = "",
    ) -> Response:
        """Show the form for files; or, of documents or an earlier one, the options and the estimate."""
        check_may_change(viewer)
        fields, document_ids = dict(of.defaults), unpack_ids(given)
        if document:
            document_ids = [parse_source(document, ids.parse_document_id)]
        if like:
            row_id, tenant_id = parse_source(like, of.pages.kind.parse), viewer.caller.tenant_id
            fields, earlier = await services.transact(of.read_earlier, row_id, tenant_id=tenant_id)
            document_ids = [*earlier][:MAX_DOCUMENTS]
        if not document_ids:
            return _upload_page(request, of)
        draft = await read(services, viewer, document_ids)
        return await _draft_page(request, services, viewer, of, draft, fields)

    @router.post(place)
    async def upload(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
        """Store the files of the form as documents; those that are none stop no others."""
        return await uploading.store_files(request, services, viewer, address=of.address)

    @router.get(f"{place}/live")
    async def follow_draft(
        request: Request,
        services: ServicesDep,
        viewer: ViewerDep,
        watched: LiveDep,
        given: Annotated[str, Query(alias="of")] = "",
    ) -> Response:
        """Stream the extraction of the draft's documents."""
        return await uploading.follow(request, services, viewer, watched, of=given, address=of.address)

    @router.post(f"{place}/estimate")
    async def estimate(
        request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep
    ) -> Response:
        """Show the draft with these options, and what they would take."""
        draft = await read(services, viewer, unpack_ids(form.get("of", "")))
        return await _draft_page(request, services, viewer, of, draft, form)

    @router.post(f"{place}/start")
    async def start(request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep) -> Response:
        """Submit it; the same form sent twice submits once."""
        draft = await read(services, viewer, unpack_ids(form.get("of", "")))
        submit = partial(of.submit, services, draft, form, tenant_id=viewer.caller.tenant_id)
        try:
            made = await submit(idempotency=once(services, viewer, form))
        except InvalidRequestError as error:
            return await _draft_page(request, services, viewer, of, draft, form, refusal=error.message)
        return of.after(made)

    return router


def _upload_page(request: Request, of: NewSubject) -> Response:
    return render(
        request,
        "documents/upload.html",
        title=of.title,
        most=MAX_DOCUMENTS,
        address=of.address,
        command=of.command,
    )


async def _draft_page(
    request: Request,
    services: Services,
    viewer: Viewer,
    of: NewSubject,
    draft: DocumentDraft,
    fields: Mapping[str, str],
    *,
    refusal: str | None = None,
) -> Response:
    """Show documents, options and the estimate; or why what was sent is refused."""
    estimated, problem = None, refusal
    if refusal is None and draft.documents and not draft.extracting:
        try:
            estimated = await of.estimate(services, draft, fields, tenant_id=viewer.caller.tenant_id)
        except LongbatchError as error:
            problem = error.message
    return render(
        request,
        of.template,
        title=of.title,
        status=200 if refusal is None else 400,
        draft=draft,
        rows=[(ids.document_id(each.id), each) for each in draft.documents],
        options=fields,
        estimated=estimated,
        problem=problem,
        once=ids.uuid7().hex,
        address=of.address,
        live_address=f"{of.address}/live?of={draft.packed}" if draft.extracting else None,
        **of.values,
    )
