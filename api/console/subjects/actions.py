"""What is done with one subject, of any kind: cancel it, delete it."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Protocol
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.forms import ChangeDep
from api.console.page import redirect, render
from api.console.session import ViewerDep
from api.console.subjects.kinds import SubjectPages
from api.http.dependencies import ServicesDep
from api.http.identifiers import in_path
from api.runtime.services import Services
from jobs import summaries


class Cancel(Protocol):
    """Cancels one of the tenant's."""

    def __call__(self, services: Services, row_id: UUID, /, *, tenant_id: UUID) -> Awaitable[None]:
        """Raise NotFoundError if the tenant has none of this id."""


@dataclass(frozen=True, slots=True)
class SubjectActions:
    """What may be done with one of a kind.

    Attributes:
        name: what the button calls one.
        cancelled: what the page says then.
        deletion: what the page tells before it is deleted.
        deleted: what the list says then.
    """

    pages: SubjectPages
    cancel: Cancel
    name: str
    cancelled: str
    deletion: str
    deleted: str


def action_routes(of: SubjectActions) -> APIRouter:
    """Make the routes that cancel and delete one of a kind."""
    router = page_router()
    pages = of.pages
    place = f"{pages.path}/{{subject_id}}"
    find = in_path("subject_id", pages.kind)

    @router.post(f"{place}/cancel")
    async def cancel(
        subject_id: Annotated[UUID, Depends(find)], services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
    ) -> Response:
        """Cancel it and its jobs; running ones stop within a second."""
        await of.cancel(services, subject_id, tenant_id=viewer.caller.tenant_id)
        return redirect(pages.address_of(subject_id), done=of.cancelled)

    @router.get(f"{place}/delete")
    async def confirm_delete(
        request: Request,
        subject_id: Annotated[UUID, Depends(find)],
        services: ServicesDep,
        viewer: ViewerDep,
    ) -> Response:
        """Ask before it is deleted."""
        find_own = partial(summaries.get, summary_id=subject_id, purpose=pages.purpose)
        await services.transactions.run(partial(find_own, tenant_id=viewer.caller.tenant_id))
        return render(
            request,
            "confirm.html",
            title=f"Delete {of.name}",
            question=of.deletion,
            address=pages.address_of(subject_id),
            verb="delete",
        )

    @router.post(f"{place}/delete")
    async def delete(
        subject_id: Annotated[UUID, Depends(find)], services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
    ) -> Response:
        """Delete what has ended, with its jobs."""
        remove = partial(summaries.remove, summary_id=subject_id, purpose=pages.purpose)
        await services.transact(remove, tenant_id=viewer.caller.tenant_id)
        return redirect(pages.address, done=of.deleted)

    return router
