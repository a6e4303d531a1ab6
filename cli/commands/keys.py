"""The commands for API keys: create, limit, list, revoke, rotate; they use the database directly."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final
from uuid import UUID

import typer
from rich.markup import escape
from rich.table import Table

from cli.admin import MOST, MOST_LONG, not_zero, parse_span, shown, transaction
from jobs import tenants
from jobs.database import database_now
from jobs.models.tenant import ApiKey
from jobs.tenants import keys
from jobs.tenants.keys import LIMIT_NAMES, NewKey, Scope
from jobs.views import rfc3339
from longbatch.cli.output import AsJson, notes, output, print_json, print_text

app = typer.Typer(no_args_is_help=True, help="Manage API keys in the database LONGBATCH_DATABASE__URL.")

MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-enqueued-tokens",
        min=-1,
        max=MOST_LONG,
        help="Prompt tokens plus max_tokens of its unfinished jobs; -1: its tenant's limit.",
    ),
]
MaxJobs = Annotated[
    int | None,
    typer.Option("--max-jobs", min=-1, max=MOST, help="Its unfinished jobs; -1: its tenant's limit."),
]
KeyName = Annotated[str, typer.Argument(metavar="KEY", help="lb_ and 16 digits, as `keys list` shows it.")]


def register(parent: typer.Typer) -> None:
    """Add the commands to the application."""
    parent.add_typer(app, name="keys")


@app.command()
def create(
    *,
    tenant: Annotated[str, typer.Option(help="Tenant that owns the key.")] = "default",
    name: Annotated[str, typer.Option(help="A name for yourself.")] = "",
    scope: Annotated[
        list[Scope] | None, typer.Option(help="Can be repeated.", show_default="submit and read")
    ] = None,
    expires_in: Annotated[str | None, typer.Option(help="30m, 12h or 7d.", show_default="never")] = None,
    max_requests: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Requests per minute.", show_default="its tenant's limit"),
    ] = None,
    max_jobs: MaxJobs = None,
    max_enqueued_tokens: MaxTokens = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It is shown only once: the database stores a hash."""
    span = parse_span(expires_in, option="--expires-in") if expires_in else None
    with transaction() as session:
        made = keys.create(
            session,
            tenant_id=tenants.named(session, tenant).id,
            name=name,
            scopes=scope or [Scope.SUBMIT, Scope.READ],
            expires_at=database_now(session) + span if span else None,
            limits=_given(max_enqueued_tokens, max_jobs, max_requests),
        )
    _print_new(made, as_json=as_json)


@app.command("set")
def set_(
    key: KeyName,
    *,
    max_requests: Annotated[
        int | None,
        typer.Option(
            min=-1, max=MOST, callback=not_zero, help="Requests per minute; -1: its tenant's limit."
        ),
    ] = None,
    max_jobs: MaxJobs = None,
    max_enqueued_tokens: MaxTokens = None,
) -> None:
    """Change a key's limits; options left out change nothing. Servers hold it to them within seconds."""
    with transaction() as session:
        row = keys.named(session, key)
        keys.set_limits(session, row, _given(max_enqueued_tokens, max_jobs, max_requests))


@app.command("list")
def list_keys(
    *, tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None, as_json: AsJson = False
) -> None:
    """List keys without their secrets."""
    with transaction() as session:
        rows = keys.list_keys(session, tenant_id=tenants.named(session, tenant).id if tenant else None)
        names = tenants.read_names(session, {row.tenant_id for row in rows})
        now = database_now(session)
    if as_json:
        print_json([_object(row, names) for row in rows])
        return
    table = Table(box=None, pad_edge=False)
    # A terminal is narrow, and few keys have quotas.
    limits = {name: words for name, words in _LIMITS.items() if name == "max_requests" or _any(rows, name)}
    headings = ("key", "tenant", "name", "scopes", "state", *limits.values())
    for heading in (*headings, "created", "expires", "last used"):
        table.add_column(heading, overflow="fold", min_width=19 if heading == "key" else None)
    for row in rows:
        table.add_row(
            f"lb_{row.handle}",
            escape(names[row.tenant_id]),
            escape(row.name),
            " ".join(row.scopes),
            keys.state_of(row, now),
            *("tenant's" if own is None else f"{own:,}" for own in (getattr(row, each) for each in limits)),
            *(shown(moment) for moment in (row.created_at, row.expires_at, row.last_used_at)),
        )
    output.print(table)


@app.command()
def revoke(key: KeyName) -> None:
    """Revoke a key; servers that cached it stop accepting it within seconds."""
    with transaction() as session:
        row = keys.named(session, key)
        keys.revoke(session, row)
    print_text(f"lb_{row.handle} is revoked")


@app.command()
def rotate(
    key: KeyName,
    *,
    overlap: Annotated[
        str, typer.Option(help="How long the old key stays valid: 30m, 12h, 7d, or 0.")
    ] = "1d",
    as_json: AsJson = False,
) -> None:
    """Create a key like this one and print it; the old key expires after the overlap."""
    span = parse_span(overlap, option="--overlap")
    with transaction() as session:
        row = keys.named(session, key)
        made = keys.rotate(session, row, overlap=span)
    _print_new(made, as_json=as_json)
    notes.print(f"lb_{row.handle} is valid until {shown(row.expires_at)}.")


def _print_new(made: NewKey, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": f"lb_{made.row.handle}", "api_key": made.secret, "scopes": made.row.scopes})
        return
    print_text(made.secret)
    notes.print("Keep it: it is not shown again.")


_LIMITS: Final = dict(zip(LIMIT_NAMES, ("enqueued tokens", "jobs", "requests a minute"), strict=True))


def _any(rows: Iterable[ApiKey], limit: str) -> bool:
    return any(getattr(row, limit) is not None for row in rows)


def _given(*values: int | None) -> dict[str, int | None]:
    """Collect the given limits; -1 becomes None, which takes the key's own back."""
    given = zip(LIMIT_NAMES, values, strict=True)
    return {name: None if value == -1 else value for name, value in given if value is not None}


def _object(row: ApiKey, names: Mapping[UUID, str]) -> dict[str, object]:
    moments = ("created_at", "expires_at", "revoked_at", "last_used_at")
    times = {name: rfc3339(moment) if (moment := getattr(row, name)) else None for name in moments}
    return {
        "id": f"lb_{row.handle}",
        "tenant": names[row.tenant_id],
        "name": row.name,
        "scopes": row.scopes,
        **keys.limits_of(row),
        **times,
    }
