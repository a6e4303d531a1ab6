"""The commands for webhooks: list, add, listen, remove, enable, test, rotate, log, secret, replay."""

import json
import queue
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

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
    print_error,
    print_json,
    print_text,
)
from longbatch.cli.webhook_listener import LISTENER_HOST, Listener
from longbatch.client import Client
from longbatch.errors import ApiError, LongbatchError
from longbatch.flows import route
from longbatch.objects import Event

app = typer.Typer(no_args_is_help=True, help="Manage webhook endpoints and their deliveries.")

_SHORT_CHARS: Final = 120  # of an event's data on a line for people
_LOOPBACK: Final = (LISTENER_HOST, "localhost", "::1")

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


def listen(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on.", show_default="a free one")
    ] = 0,
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="job.completed, batch.failed, summary.completed, …; can be repeated.",
            show_default="*, all but job.started",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
    api_url: ApiUrl = None,
) -> None:
    """Print events as they arrive, with verified signatures, until Ctrl-C.

    Listens on 127.0.0.1 and adds an endpoint there, which it removes at the end. The server must run on this
    machine and allow webhooks to it, as `longbatch up` does.
    """
    with client_of(api_url) as client, _until_signal() as inbox:
        if urlsplit(client.api_url).hostname not in _LOOPBACK:
            message = (
                f"must be a server on this machine: {client.api_url} would send to its own {LISTENER_HOST}"
            )
            raise typer.BadParameter(message, param_hint="--api-url")
        with _listener(port) as listener, _endpoint(client, listener.url, event or ["*"]) as made:
            notes.print(f"listening on {listener.url} for {escape(', '.join(made['events']))}; Ctrl-C stops")
            with listener.serving(
                made["secret"],
                deliver=lambda event, body: inbox.put((event, body)),
                refuse=inbox.put,
            ):
                while (found := inbox.get()) is not None:
                    _show_delivery(found, as_json=as_json)


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


# What a listener received: an event with the delivery's body, why a request was refused, or None to stop.
_Received = tuple[Event, dict[str, Any]] | str | None


@contextmanager
def _until_signal() -> "Iterator[queue.SimpleQueue[_Received]]":
    """Yield a queue into which Ctrl-C and SIGTERM put None, so that no step of the block is cut short."""
    inbox: queue.SimpleQueue[_Received] = queue.SimpleQueue()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: inbox.put(None))  # the one queue whose put a handler may call
    try:
        yield inbox
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _listener(port: int) -> Iterator[Listener]:
    try:
        listener = Listener(port)
    except OSError as error:
        raise typer.BadParameter(f"{port} cannot be used: {error.strerror}", param_hint="--port") from error
    with listener:
        yield listener


@contextmanager
def _endpoint(client: Client, url: str, events: list[str]) -> Iterator[dict[str, Any]]:
    """Add an endpoint for the block, and remove it at the end."""
    sent = {"url": url, "events": events, "description": "longbatch webhooks listen"}
    made = client.call("POST", route("webhook_endpoints"), json=sent)
    try:
        yield made
    finally:
        try:
            client.call("DELETE", route("webhook_endpoints", made["id"]))
        except LongbatchError as error:
            is_gone = isinstance(error, ApiError) and error.status == HTTPStatus.NOT_FOUND
            if not is_gone:
                notes.print(f"the endpoint is left: `longbatch webhooks remove {made['id']}` removes it")
                raise


def _show_delivery(found: tuple[Event, dict[str, Any]] | str, *, as_json: bool) -> None:
    if isinstance(found, str):
        print_error(f"refused a request: {found}")
        return
    event, body = found
    if as_json:
        line = json.dumps(body, ensure_ascii=False)
    else:
        data = json.dumps(body["data"], ensure_ascii=False)
        short = data if len(data) <= _SHORT_CHARS else f"{data[:_SHORT_CHARS]}…"
        line = f"{event.created_at.astimezone():%H:%M:%S} {event.type} {event.id} {short}"
    print_text(line)
    sys.stdout.flush()


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
    "listen": listen,
    "remove": remove,
    "enable": enable,
    "rotate": rotate,
    "test": send_test,
    "replay": replay,
    "log": log,
    "secret": secret,
}
