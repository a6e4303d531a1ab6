"""The audit log over HTTP: list it."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.audit.replies import AuditListReply, AuditQuery, entry_object
from api.http.dependencies import CallerDep, ServicesDep
from api.http.identifiers import parse_range
from api.http.openapi import responses
from api.http.replies import page
from jobs import audit, ids
from jobs.audit import AuditFilter
from jobs.tenants.keys import Scope

router = APIRouter(tags=["tenants"])


@router.get(
    "/v1/audit",
    summary="List the audit log",
    responses=responses(200, AuditListReply, "One page", 400, 503),
)
async def list_audit(
    services: ServicesDep, caller: CallerDep, query: Annotated[AuditQuery, Query()]
) -> JSONResponse:
    """List who changed what of your tenant, newest first; keys with the scope `operator` list everything."""
    wanted = parse_range(query, ids.AUDIT, tenant_id=caller.tenant_id)
    which = AuditFilter(query.action, query.object_id)
    is_across = Scope.OPERATOR in caller.scopes

    def read(session: Session) -> dict[str, Any]:
        found = audit.list_entries(session, which, wanted, is_across=is_across)
        return page([entry_object(each, caller) for each in found.items], has_more=found.has_more)

    run = services.transactions.run_across if is_across else services.transact
    return JSONResponse(await run(read))
