"""The list of tenants, for operators, and the form that creates one; all others are led to their own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.forms import OperationDep
from api.console.lists import PAGE, RowList
from api.console.page import redirect, render
from api.console.session import ViewerDep
from api.http.body import parse
from api.http.dependencies import ServicesDep
from api.http.errors import status_of
from api.runtime.services import Services
from api.tenants import orders
from api.tenants.admin_schemas import TenantRequest
from jobs import ids, tenants
from jobs.database import database_now
from jobs.errors import AlreadyExistsError, InvalidRequestError, LongbatchError
from jobs.models import Tenant, TenantLimit
from jobs.scheduling import halts
from jobs.scheduling.halts import Halt
from jobs.states.halt import HaltState, state_of
from jobs.tenants import quotas, usage
from jobs.tenants.usage import UsageTotal

router = page_router()

LIST: Final = "/console/tenants"
_TENANTS: Final = RowList(LIST, ids.TENANT, filters=())


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant in the list.

    Attributes:
        own: its limits that differ from the settings, in words.
        today: what it used today.
    """

    name: str
    weight: float
    queue: HaltState
    halt: Halt | None
    num_running: int
    own: Sequence[str]
    today: UsageTotal


@router.get("/tenants")
async def show_tenants(
    request: Request, services: ServicesDep, viewer: ViewerDep, after: str = "", name: str = ""
) -> Response:
    """Show a page of tenants, newest first; `name` leads to one of them."""
    if not viewer.is_operator:
        return redirect(f"{LIST}/{viewer.tenant_name}")
    if wanted := name.strip():
        found = await services.transactions.run_across(partial(tenants.find, text=wanted))
        return redirect(f"{LIST}/{found.name}")
    return await _render(request, services, after=after)


@router.post("/tenants")
async def create_tenant(
    request: Request, services: ServicesDep, viewer: ViewerDep, form: OperationDep
) -> Response:
    """Create a tenant without keys, and lead to its page, where the first key is made."""
    name = form.get("name", "").strip()
    try:
        asked = parse(TenantRequest, json.dumps({"name": name}).encode())
        await orders.create_tenant(services, viewer.caller, asked)
    except (InvalidRequestError, AlreadyExistsError) as error:
        return await _render(request, services, after="", error=error, filled=name)
    return redirect(f"{LIST}/{name}", done=f"The tenant {name} is created; it has no keys yet.")


async def _render(
    request: Request,
    services: Services,
    *,
    after: str,
    error: LongbatchError | None = None,
    filled: str = "",
) -> Response:
    query = _TENANTS.parse({"after": after})
    rows, next_after = await services.transactions.run_across(partial(read_page, after=query.after))
    return render(
        request,
        "tenants.html",
        title="Tenants",
        status=status_of(error) if error else 200,
        problem=error and error.message,
        filled=filled,
        rows=rows,
        address=LIST,
        links=query.links(next_after=next_after),
    )


def read_page(session: Session, *, after: UUID | None) -> tuple[Sequence[TenantRow], UUID | None]:
    """Read a page of tenants, newest first, and after which the next one begins; None: it is the last."""
    page = tenants.read_page(session, after=after, limit=PAGE)
    tenant_ids = [each.id for each in page.items]
    own = quotas.own_limits(session, tenant_ids)
    running = halts.count_running(session, tenant_ids)
    day = database_now(session).astimezone(UTC).date()
    today = usage.read_totals(session, first=day, last=day, tenant_ids=tenant_ids)
    rows = [
        _row(each, own.get(each.id), today.get(each.id, UsageTotal()), num_running=running.get(each.id, 0))
        for each in page.items
    ]
    return rows, page.items[-1].id if page.has_more else None


def _row(row: Tenant, own: TenantLimit | None, today: UsageTotal, *, num_running: int) -> TenantRow:
    halt = halts.halt_of(row)
    return TenantRow(
        name=row.name,
        weight=row.weight,
        queue=state_of(halt.kind if halt else None, num_running=num_running),
        halt=halt,
        num_running=num_running,
        own=[f"{words}: {value:,}" for words, value in own_limits(own).items() if value is not None],
        today=today,
    )


def own_limits(own: TenantLimit | None) -> Mapping[str, int | None]:
    """List a tenant's own limits by their names on pages; None: the setting holds."""
    return {words: getattr(own, name, None) for name, words in LIMITS.items()}


# The columns of `TenantLimit`, as pages call them.
LIMITS: Final[Mapping[str, str]] = {
    "max_enqueued_tokens": "enqueued tokens",
    "max_jobs": "unfinished jobs",
    "max_requests": "requests a minute",
    "max_stored_bytes": "stored bytes",
}
