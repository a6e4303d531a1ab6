"""The commands for tenants: create, list, set; they use the database directly."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from cli.admin import shown, transaction
from cli.commands import halts
from cli.output import AsJson, output, print_json, print_text
from jobs import tenants
from jobs.models import Tenant
from jobs.models.tenant import TenantLimit
from jobs.tenants.quotas import LIMIT_NAMES
from jobs.views import rfc3339

app = typer.Typer(no_args_is_help=True, help="Manage tenants in the database LONGBATCH_DATABASE__URL.")

TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-enqueued-tokens", min=-1, help="Prompt tokens plus max_tokens; -1: the default."),
]
MaxJobs = Annotated[int | None, typer.Option("--max-jobs", min=-1, help="Unfinished jobs; -1: the default.")]
MaxRequests = Annotated[
    int | None, typer.Option("--max-requests", min=-1, help="Requests per minute; -1: the default.")
]
MaxStored = Annotated[
    int | None,
    typer.Option("--max-stored-bytes", min=-1, help="Kept in the database; 0: no limit; -1: the default."),
]
Weight = Annotated[
    float | None, typer.Option("--weight", min=0.001, help="Share of an engine relative to other tenants.")
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
) -> None:
    """Create a tenant; `keys create --tenant` gives it a key."""
    with transaction() as session:
        row = tenants.create(session, name)
        limits = _given(max_enqueued_tokens, max_jobs, max_requests, max_stored_bytes)
        tenants.set_limits(session, row.id, limits)
        tenants.set_weight(session, row.id, weight)
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
) -> None:
    """Change a tenant's limits or weight; options left out change nothing."""
    with transaction() as session:
        row = tenants.named(session, name)
        limits = _given(max_enqueued_tokens, max_jobs, max_requests, max_stored_bytes)
        tenants.set_limits(session, row.id, limits)
        tenants.set_weight(session, row.id, weight)


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
    for heading in ("weight", "enqueued tokens", "jobs", "requests a minute", "stored bytes", "created"):
        table.add_column(heading, overflow="fold")
    for tenant, limit in rows:
        own = [getattr(limit, name, None) for name in LIMIT_NAMES]
        cells = ["default" if value is None else f"{value:,}" for value in own]
        table.add_row(escape(tenant.name), f"{tenant.weight:g}", *cells, shown(tenant.created_at))
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
        **own,
    }
