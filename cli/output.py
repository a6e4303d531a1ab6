"""What the client verbs share: the server's address, how values are printed, and how errors end a verb."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from cli import local
from cli.client import Client, RefusedError, ServerUnreachableError

EXIT_NOT_COMPLETED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_REFUSED: Final = 4
EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 the job did not complete, 2 wrong usage, 3 no server answers,"
    " 4 the server refused the request."
)

ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--api-url",
        envvar="LONGBATCH_API_URL",
        help="The server; its key is LONGBATCH_API_KEY.",
        show_default="the local stack",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="job_…")]

output = Console(highlight=False, soft_wrap=True)
notes = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def client_of(api_url: str | None) -> Iterator[Client]:
    """A client of this server; its errors end the verb with one line and their exit code."""
    server = local.find_server(api_url)
    try:
        with Client(server.url, server.api_key) as client:
            yield client
    except ServerUnreachableError as error:
        complain(error.message)
        raise typer.Exit(EXIT_UNREACHABLE) from error
    except RefusedError as error:
        complain(f"{error.message} [{error.server_code}]")
        if error.status == HTTPStatus.UNAUTHORIZED:
            notes.print(
                "Set LONGBATCH_API_KEY: `longbatch up` shows the first key, `keys create` makes others."
            )
        raise typer.Exit(EXIT_REFUSED) from error


def complain(message: str) -> None:
    """One line on standard error."""
    notes.print(f"[red]error:[/] {escape(message)}")


def print_json(value: object) -> None:
    """The value as indented JSON, the same on a terminal and in a pipe."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_text(text: str) -> None:
    """The text as it is: no markup, no wrapping, one line feed at its end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def pairs(given: list[str] | None, *, option: str) -> dict[str, str]:
    """`KEY=VALUE` options as a mapping.

    Raises:
        typer.BadParameter: one has no equals sign.
    """
    found: dict[str, str] = {}
    for each in given or []:
        key, separator, value = each.partition("=")
        if not separator:
            raise typer.BadParameter(f"{each!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found


class Priority(StrEnum):
    """Order among your own jobs."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
