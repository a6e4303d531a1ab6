"""One tenant: its limits and what it holds of them, its queue, its API keys; operators change them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats
from api.console.error_pages import page_router
from api.console.forms import OperationDep
from api.console.page import redirect, render
from api.console.reading import read_for
from api.console.session import Viewer, ViewerDep
from api.console.tenants.tenants import LIMITS, LIST
from api.http.body import parse
from api.http.dependencies import ServicesDep
from api.http.errors import status_of
from api.http.identifiers import TenantNameDep
from api.runtime.services import Services
from api.tenants import orders
from api.tenants.admin_schemas import TenantUpdate
from jobs import ids, tenants
from jobs.database import database_now
from jobs.errors import InvalidRequestError
from jobs.models import ApiKey, Tenant, TenantLimit
from jobs.scheduling import halts
from jobs.states.halt import state_of
from jobs.tenants import key_quotas, keys, quotas, stored_bytes
from jobs.tenants.keys import Scope
from jobs.tenants.quotas import QuotaUsage

router = page_router()

_KEYS: Final = 50
# What a new key may live for, in seconds; the first is chosen already.
LIFETIMES: Final[Mapping[str, str]] = {
    "": "for ever",
    "86400": "1 day",
    "2592000": "30 days",
    "7776000": "90 days",
    "31536000": "1 year",
}
# What a key may do, as the form says it.
SCOPES: Final[Mapping[Scope, str]] = {
    Scope.READ: "see what belongs to the tenant",
    Scope.SUBMIT: "create, cancel and delete it",
    Scope.ENGINE: "pass tensors to engines by name",
    Scope.ADMIN: "read metrics from another host",
    Scope.OPERATOR: "operate: see all tenants, manage engines, tenants, keys and limits",
}


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key in the list of a tenant's keys.

    Attributes:
        limits: its own, by name; None: its tenant's holds.
        held: what its unfinished jobs take.
    """

    id: str
    name: str
    scopes: Sequence[str]
    state: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    limits: Mapping[str, int | None]
    held: QuotaUsage


@dataclass(frozen=True, slots=True)
class TenantDetails:
    """A tenant with what its own sessions may read.

    Attributes:
        own: its limits that differ from the settings; None: all are those of the settings.
        held: what its unfinished jobs take of its quota, and what it keeps.
    """

    tenant: Tenant
    own: TenantLimit | None
    held: QuotaUsage


@dataclass(frozen=True, slots=True)
class GuardedDetails:
    """What the server alone reads, as rows of keys have hashes and reservations no tenant.

    Attributes:
        keys: a page of them, newest first.
        next_key: the list goes on after this one; None: it is whole.
    """

    num_running: int
    keys: Sequence[KeyRow]
    next_key: str | None


@router.get("/tenants/{tenant}")
async def show_tenant(
    request: Request, tenant: TenantNameDep, services: ServicesDep, viewer: ViewerDep, after: str = ""
) -> Response:
    """Show the tenant; all but operators see their own alone."""
    return await render_tenant(request, services, viewer, tenant, after=after)


@router.post("/tenants/{tenant}/limits")
async def set_limits(
    request: Request, tenant: TenantNameDep, services: ServicesDep, viewer: ViewerDep, form: OperationDep
) -> Response:
    """Set the tenant's weight and limits; an empty field takes a limit back to the setting."""
    filled = {name: form.get(name, "").strip() for name in ("weight", *LIMITS)}
    try:
        limits = {name: whole_number(name, filled[name]) for name in LIMITS}
        asked = parse(TenantUpdate, json.dumps({"weight": _weight(filled), "limits": limits}).encode())
    except InvalidRequestError as error:
        return await render_tenant(request, services, viewer, tenant, error=error, filled=filled)
    found = await orders.update_tenant(services, viewer.caller, tenant, asked)
    return redirect(f"{LIST}/{found['name']}", done="The limits are set; they hold within seconds.")


async def render_tenant(
    request: Request,
    services: Services,
    viewer: Viewer,
    name: str,
    *,
    after: str = "",
    error: InvalidRequestError | None = None,
    filled: Mapping[str, str] | None = None,
) -> Response:
    """Render the page, after a refused form with the error and what was filled in."""
    found = await read_for(viewer, services, partial(read_tenant, name=name))
    row = found.tenant
    guarded = await services.transactions.run_across(partial(read_guarded, tenant_id=row.id, after=after))
    halt = halts.halt_of(row)
    address = f"{LIST}/{row.name}"
    return render(
        request,
        "tenant.html",
        title=f"Tenant {row.name}" if viewer.is_operator else "Limits and keys",
        status=status_of(error) if error else 200,
        problem=error and error.message,
        found=found,
        id=ids.tenant_id(row.id),
        # The form of a new key has fields of the same names.
        limits=_limits(services, found, filled if filled and "weight" in filled else {}),
        weight=(filled or {}).get("weight", f"{row.weight:g}"),
        filled=filled or {},
        halt=halt,
        state_of=state_of(halt.kind if halt else None, num_running=guarded.num_running),
        guarded=guarded,
        may_halt=viewer.is_operator or viewer.may_change,
        scopes=SCOPES,
        key_limits={each: LIMITS[each] for each in keys.LIMIT_NAMES},
        lifetimes=LIFETIMES,
        address=address,
        next_address=guarded.next_key and address + formats.query({"after": guarded.next_key}),
        is_first=not after,
    )


def read_tenant(session: Session, *, name: str) -> TenantDetails:
    """Read the tenant of this name or id.

    Raises:
        NotFoundError: there is no such tenant, or the session may not see it.
    """
    row = tenants.find(session, name)
    held = quotas.current_usage(session, row.id)
    stored = QuotaUsage(stored_bytes=stored_bytes.read(session, row.id))
    return TenantDetails(row, session.get(TenantLimit, row.id), held + stored)


def read_guarded(session: Session, *, tenant_id: UUID, after: str) -> GuardedDetails:
    """Read the tenant's keys, and how many of its jobs run.

    Raises:
        InvalidRequestError: it has no key with the public part `after`.
    """
    page = keys.read_page(session, tenant_id=tenant_id, after=after or None, limit=_KEYS)
    held = key_quotas.read_usages(session, [each.id for each in page.items])
    now = database_now(session)
    return GuardedDetails(
        num_running=halts.count_running(session, [tenant_id]).get(tenant_id, 0),
        keys=[key_row(each, held.get(each.id, QuotaUsage()), now=now) for each in page.items],
        next_key=keys.public_id(page.items[-1]) if page.has_more else None,
    )


def key_row(row: ApiKey, held: QuotaUsage, *, now: datetime) -> KeyRow:
    """Make the row that shows this key."""
    return KeyRow(
        id=keys.public_id(row),
        name=row.name,
        scopes=row.scopes,
        state=keys.state_of(row, now),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        limits=keys.limits_of(row),
        held=held,
    )


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit on the page.

    Attributes:
        held: what the tenant holds of it now; None: that is not counted.
        limit: what holds; None: any amount.
        default: of the settings; None: any amount.
        is_own: it differs from the settings.
        filled: what the form's field shows.
    """

    name: str
    words: str
    held: int | None
    limit: int | None
    default: int | None
    is_own: bool
    filled: str


def _limits(services: Services, found: TenantDetails, filled: Mapping[str, str]) -> Sequence[LimitRow]:
    settings = services.settings.limits
    effective = quotas.limits_of(settings, found.own)
    held = {
        "max_enqueued_tokens": found.held.tokens,
        "max_jobs": found.held.jobs,
        "max_stored_bytes": found.held.stored_bytes,
    }
    rows = []
    for name, words in LIMITS.items():
        own = getattr(found.own, name, None)
        limit, default = getattr(effective, name), getattr(settings, name)
        if name == "max_stored_bytes":  # 0: any amount
            limit, default = limit or None, default or None
        shown = filled.get(name, "" if own is None else str(own))
        rows.append(LimitRow(name, words, held.get(name), limit, default, own is not None, shown))
    return rows


def whole_number(name: str, text: str) -> int | None:
    """Read a limit; None: the field is empty.

    Raises:
        InvalidRequestError: it is no whole number.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise InvalidRequestError(f"{LIMITS[name]}: Must be a whole number, not negative.", param=name)
    return int(text)


def _weight(filled: Mapping[str, str]) -> float | None:
    try:
        return float(filled["weight"]) if filled["weight"] else None
    except ValueError:
        raise InvalidRequestError("weight: Must be a number.", param="weight") from None
