"""The commands for tenants: create, list, set, delete; they use the database directly."""

import time
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table
from sqlalchemy import select

from cli.admin import MOST, MOST_LONG, not_zero, shown, transaction
from cli.commands import halts
from jobs import tenants
from jobs.erasure import tenants as erasure
from jobs.models import Tenant
from jobs.models.tenant import TenantLimit
from jobs.scheduling.halts import Operator
from jobs.tenants.quotas import LIMIT_NAMES
from jobs.views import optional_rfc3339, rfc3339
from longbatch.cli.output import AsJson, output, print_json, print_text

_LOOK_SECONDS: Final = 0.5

app = typer.Typer(no_args_is_help=True, help="Manage tenants in the database LONGBATCH_DATABASE__URL.")

TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-enqueued-tokens", min=-1, max=MOST_LONG, help="Prompt tokens plus max_tokens; -1: the default."
    ),
]
MaxJobs = Annotated[
    int | None, typer.Option("--max-jobs", min=-1, max=MOST, help="Unfinished jobs; -1: the default.")
]
MaxRequests = Annotated[
    int | None,
    typer.Option(
        "--max-requests",
        min=-1,
        max=MOST,
        callback=not_zero,
        help="Requests per minute; -1: the default.",
    ),
]
MaxStored = Annotated[
    int | None,
    typer.Option(
        "--max-stored-bytes",
        min=-1,
        max=MOST_LONG,
        help="Kept in the database; 0: no limit; -1: the default.",
    ),
]
Weight = Annotated[
    float | None, typer.Option("--weight", min=0.001, help="Share of an engine relative to other tenants.")
]

ZeroRetention = Annotated[
    int | None,
    typer.Option(
        "--zero-retention-seconds",
        min=0,
        max=30 * 86_400,
        help="Content goes once it was delivered, at the latest after so long; 0: it stays.",
    ),
]


def register(parent: typer.Typer) -> None:
    """Add the commands to the application."""
    halts.register_queues(app)
    parent.add_typer(app, name="tenants")


@app.command()
def create(
    name: TenantName,
    *,
    max_enqueued_tokens: MaxTokens = None,
    max_jobs: MaxJobs = None,
    max_requests: MaxRequests = None,
    max_stored_bytes: MaxStored = None,
    weight: Weight = None,
    zero_retention_seconds: ZeroRetention = None,
) -> None:
    """Create a tenant; `keys create --tenant` gives it a key."""
    with transaction() as session:
        row = tenants.create(session, name)
        limits = _given(max_enqueued_tokens, max_jobs, max_requests, max_stored_bytes)
        tenants.set_limits(session, row.id, limits)
        tenants.set_weight(session, row.id, weight)
        if zero_retention_seconds is not None:
            tenants.set_retention(session, row.id, zero_retention_seconds or None)
    print_text(name)


@app.command("set")
def set_(
    name: TenantName,
    *,
    max_enqueued_tokens: MaxTokens = None,
    max_jobs: MaxJobs = None,
    max_requests: MaxRequests = None,
    max_stored_bytes: MaxStored = None,
    weight: Weight = None,
    zero_retention_seconds: ZeroRetention = None,
) -> None:
    """Change a tenant's limits or weight; options left out change nothing."""
    with transaction() as session:
        row = tenants.named(session, name)
        limits = _given(max_enqueued_tokens, max_jobs, max_requests, max_stored_bytes)
        tenants.set_limits(session, row.id, limits)
        tenants.set_weight(session, row.id, weight)
        if zero_retention_seconds is not None:
            tenants.set_retention(session, row.id, zero_retention_seconds or None)


@app.command()
def delete(
    name: TenantName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return once nothing of it is left.")] = False,
) -> None:
    """Delete a tenant with everything that it has; there is no way back.

    Its keys cease to work, its running jobs are stopped, and service workers remove the rest in parts.
    """
    if not yes:
        typer.confirm(f"Delete {name} with all its jobs, results, files and documents?", abort=True)
    with transaction() as session:
        tenant_id = erasure.order(session, tenants.named(session, name), by=Operator()).id
    print_text(f"{name} is being deleted")
    num_removed: int | None = 0
    while wait and num_removed is not None:
        with transaction() as session:
            num_removed = session.scalar(select(Tenant.num_removed).where(Tenant.id == tenant_id))
        time.sleep(_LOOK_SECONDS if num_removed is not None else 0)
    if wait:
        print_text(f"{name} is deleted")


@app.command("list")
def list_tenants(*, as_json: AsJson = False) -> None:
    """List tenants with their own limits."""
    with transaction() as session:
        rows = tenants.list_tenants(session)
    if as_json:
        print_json([_object(tenant, limit) for tenant, limit in rows])
        return
    table = Table(box=None, pad_edge=False)
    longest = max((len(tenant.name) for tenant, _ in rows), default=0)
    table.add_column("tenant", min_width=longest)  # a truncated name is of no use
    headings = "weight", "enqueued tokens", "jobs", "requests a minute", "stored bytes", "created", ""
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for tenant, limit in rows:
        own = [getattr(limit, name, None) for name in LIMIT_NAMES]
        cells = ["default" if value is None else f"{value:,}" for value in own]
        gone = "" if tenant.deleted_at is None else f"being deleted, {tenant.num_removed:,} rows are gone"
        table.add_row(escape(tenant.name), f"{tenant.weight:g}", *cells, shown(tenant.created_at), gone)
    output.print(table)


def _given(*values: int | None) -> dict[str, int | None]:
    """Collect the given limits; -1 becomes None, which removes the tenant's own."""
    given = zip(LIMIT_NAMES, values, strict=True)
    return {name: None if value == -1 else value for name, value in given if value is not None}


def _object(tenant: Tenant, limit: TenantLimit | None) -> dict[str, object]:
    own = {name: getattr(limit, name, None) for name in LIMIT_NAMES}
    return {
        "id": str(tenant.id),
        "name": tenant.name,
        "weight": tenant.weight,
        "created_at": rfc3339(tenant.created_at),
        "zero_retention_seconds": tenant.zero_retention_seconds,
        "deleted_at": optional_rfc3339(tenant.deleted_at),
        "num_removed": tenant.num_removed,
        **own,
    }
