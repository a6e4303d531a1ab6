"""The command that lists the audit log."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from longbatch import calls
from longbatch.cli.output import EXIT_CODES, ApiUrl, AsJson, client_of, given, output, print_json


def register(parent: typer.Typer) -> None:
    """Add the command to the application."""
    parent.command(epilog=EXIT_CODES)(audit)


def audit(
    *,
    action: Annotated[str | None, typer.Option(help="Only this action: key.revoke, job.cancel, …")] = None,
    object_id: Annotated[str | None, typer.Option("--object", help="Only what was done to this id.")] = None,
    after: Annotated[str | None, typer.Option(help="Continue after this entry, audit_….")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of entries to list.")] = 20,
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """List who changed what, newest first: your tenant's, or everything with an operator's key."""
    query = given(action=action, object_id=object_id, after=after, limit=limit)
    with client_of(api_url) as client:
        page = client.run(calls.page("/v1/audit", query))
    if as_json:
        print_json(page)
        return
    table = Table("when", "action", Column("object", min_width=36), "by", "from", box=None)
    for each in page["data"]:
        actor = each["actor"]
        by = actor["name"] or actor["id"] or actor["kind"]
        table.add_row(each["at"], each["action"], escape(each["object_id"] or ""), escape(by), actor["via"])
    output.print(table)
