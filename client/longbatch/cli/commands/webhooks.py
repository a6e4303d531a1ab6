"""The commands for webhooks: list, add, remove, enable, test, rotate, log, secret, replay."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Column, Table

from longbatch.cli.output import (
    EXIT_CODES,
    ApiUrl,
    AsJson,
    client_of,
    given,
    notes,
    output,
    print_json,
    print_text,
)
from longbatch.flows import route

app = typer.Typer(no_args_is_help=True, help="Manage webhook endpoints and their deliveries.")

Endpoint = Annotated[str, typer.Argument(metavar="ENDPOINT", help="whep_…")]


def register(parent: typer.Typer) -> None:
    """Add the commands to the application."""
    for name, command in _COMMANDS.items():
        app.command(name, epilog=EXIT_CODES)(command)
    parent.add_typer(app, name="webhooks")


def list_endpoints(*, as_json: AsJson = False, api_url: ApiUrl = None) -> None:
    """List endpoints, newest first."""
    with client_of(api_url) as client:
        page = client.call("GET", route("webhook_endpoints"), params={"limit": 100})
    if as_json:
        print_json(page)
        return
    table = Table(_id("endpoint"), "url", "events", "state", box=None)
    for each in page["data"]:
        table.add_row(each["id"], escape(each["url"]), ", ".join(each["events"]), _state(each))
    output.print(table)


def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://…")],
    *,
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="job.completed, batch.failed, summary.completed, …; can be repeated.",
            show_default="*, all but job.started",
        ),
    ] = None,
    include_output: Annotated[
        bool, typer.Option("--include-output", help="Include small outputs in the event.")
    ] = False,
    description: Annotated[str, typer.Option(help="A note for yourself.")] = "",
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """Add an endpoint and print its secret, which is shown only once."""
    sent = {
        "url": url,
        "events": event or ["*"],
        "include_output": include_output,
        "description": description,
    }
    with client_of(api_url) as client:
        made = client.call("POST", route("webhook_endpoints"), json=sent)
    _show_secret(made, as_json=as_json)


def remove(endpoint: Endpoint, *, api_url: ApiUrl = None) -> None:
    """Delete an endpoint and its pending deliveries."""
    with client_of(api_url) as client:
        client.call("DELETE", route("webhook_endpoints", endpoint))


def enable(endpoint: Endpoint, *, api_url: ApiUrl = None) -> None:
    """Enable a disabled endpoint; `replay` sends what it missed."""
    with client_of(api_url) as client:
        client.call("PATCH", route("webhook_endpoints", endpoint), json={"enabled": True})


def rotate(endpoint: Endpoint, *, as_json: AsJson = False, api_url: ApiUrl = None) -> None:
    """Give an endpoint a new secret; the old one also signs deliveries for a day."""
    with client_of(api_url) as client:
        made = client.call("POST", route("webhook_endpoints", endpoint, "rotate"))
    _show_secret(made, as_json=as_json)


def send_test(endpoint: Endpoint, *, api_url: ApiUrl = None) -> None:
    """Send a test event and print its id; `log` shows its delivery."""
    with client_of(api_url) as client:
        print_text(client.call("POST", route("webhook_endpoints", endpoint, "test"))["id"])


def replay(
    endpoint: Endpoint,
    *,
    since: Annotated[str | None, typer.Option(help="RFC 3339 time.", show_default="all that is kept")] = None,
    api_url: ApiUrl = None,
) -> None:
    """Deliver the endpoint's past events again and print how many."""
    query = given(since=since or None)
    with client_of(api_url) as client:
        found = client.call("POST", route("webhook_endpoints", endpoint, "replay"), params=query)
    print_text(str(found["num_deliveries"]))
    if found["next_since"]:
        notes.print(f"there are more: continue with --since {found['next_since']}")


def log(
    *,
    endpoint: Annotated[str | None, typer.Option(help="Only deliveries to this endpoint.")] = None,
    event: Annotated[str | None, typer.Option(help="Only deliveries of this event.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of deliveries to list.")] = 20,
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """List deliveries, newest first."""
    query = given(endpoint_id=endpoint, event_id=event, limit=limit)
    with client_of(api_url) as client:
        page = client.call("GET", route("webhook_deliveries"), params=query)
    if as_json:
        print_json(page)
        return
    table = Table("when", _id("event"), "type", "try", "outcome", "status", "ms", box=None)
    for each in page["data"]:
        table.add_row(
            each["created_at"],
            each["event_id"],
            each["event_type"],
            str(each["attempt"]),
            each["outcome"],
            str(each["status"] or "-"),
            str(each["latency_ms"]),
        )
    output.print(table)


def secret(*, api_url: ApiUrl = None) -> None:
    """Print the secret that signs deliveries to the webhook URLs of jobs and batches."""
    with client_of(api_url) as client:
        print_text(client.call("GET", route("webhook_secret"))["secret"])


def _id(kind: str) -> Column:
    """Make a column of ids. Users copy them, so they are never truncated."""
    return Column(kind, min_width=37)


def _state(endpoint: dict[str, Any]) -> str:
    if not endpoint["enabled"]:
        return f"disabled: {endpoint['disabled_reason']}"
    return f"failing: {endpoint['num_failures']} in a row" if endpoint["num_failures"] else "fine"


def _show_secret(made: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    print_text(f"{made['id']}\n{made['secret']}")
    notes.print("keep the secret: it is not shown again")


_COMMANDS: Final[Mapping[str, Callable[..., None]]] = {
    "list": list_endpoints,
    "add": add,
    "remove": remove,
    "enable": enable,
    "rotate": rotate,
    "test": send_test,
    "replay": replay,
    "log": log,
    "secret": secret,
}
