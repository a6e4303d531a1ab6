"""The audit log: who changed what, with filters in its address."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.audit.replies import entry_object
from api.console.error_pages import page_router
from api.console.lists import ListPage, ListQuery, RowList
from api.console.page import render
from api.console.reading import read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from jobs import audit, ids
from jobs.audit import Action, AuditFilter

router = page_router()

_LOG: Final = RowList(
    "/console/audit",
    ids.AUDIT,
    filters=("action", "object", "tenant"),
    values={"action": [*Action]},
)


@router.get("/audit")
async def show_audit(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of the log, newest first."""
    query = _LOG.parse(request.query_params)
    page = await read_for(viewer, services, partial(_read_page, query=query, viewer=viewer))
    return render(
        request,
        "audit.html",
        title="Audit log",
        page=page,
        fields=query.fields,
        actions=[*Action],
        links=query.links(next_after=page.next),
    )


def _read_page(session: Session, *, query: ListQuery, viewer: Viewer) -> ListPage[Mapping[str, Any]]:
    """Read a page of the log, in a bounded number of rows; raise as `ListQuery.range_for` does."""
    action = query.chosen.get("action")
    which = AuditFilter(Action(action) if action else None, query.chosen.get("object"))
    found = audit.search(session, which, query.range_for(session, viewer))
    names = tenant_names(session, viewer, [each.tenant_id for each in found.items])
    rows = {
        each.id: entry_object(each, viewer.caller)
        | {"moment": each.at, "tenant": names.get(each.tenant_id) if each.tenant_id else None}
        for each in found.items
    }
    return ListPage(rows, names, found.next, found.is_cut)
