"""What the client commands share: the server's address, printing, and how an error ends a command."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from longbatch.client import Client
from longbatch.errors import ApiError, ServerUnreachableError
from longbatch.markdown import on_one_line

EXIT_NOT_COMPLETED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_REFUSED: Final = 4
EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 the job did not complete, 2 usage error, 3 no server answers,"
    " 4 the server refused the request."
)

ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--api-url",
        envvar="LONGBATCH_API_URL",
        help="URL of the server; its key comes from LONGBATCH_API_KEY.",
        show_default="the local stack",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
COLOURS: Final = {
    "ready": "green",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
}
JobId = Annotated[str, typer.Argument(metavar="JOB", help="job_…")]

output = Console(highlight=False, soft_wrap=True)
notes = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def client_of(api_url: str | None) -> Iterator[Client]:
    """Open a client. Its errors end the command with one line and an exit code."""
    try:
        with Client(api_url) as client:
            yield client
    except ServerUnreachableError as error:
        print_error(error.message)
        raise typer.Exit(EXIT_UNREACHABLE) from error
    except ApiError as error:
        print_error(f"{error.message} [{error.code}]")
        if error.status == HTTPStatus.UNAUTHORIZED:
            notes.print(
                "Set LONGBATCH_API_KEY: `longbatch up` prints the first key, `keys create` makes more."
            )
        raise typer.Exit(EXIT_REFUSED) from error


def print_error(message: str) -> None:
    """Print an error on one line of standard error."""
    notes.print(f"[red]error:[/] {escape(on_one_line(message))}")


def print_json(value: object) -> None:
    """Print the value as indented JSON, the same on a terminal and in a pipe."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_text(text: str) -> None:
    """Print the text verbatim: no markup, no wrapping, a line feed at the end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def coloured(state: str) -> str:
    """Mark a state up in its colour."""
    return f"[{COLOURS.get(state, 'cyan')}]{state}[/]"


def given(**fields: object) -> dict[str, Any]:
    """Collect the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def pairs(given: list[str] | None, *, option: str) -> dict[str, str]:
    """Parse `KEY=VALUE` options into a mapping.

    Raises:
        typer.BadParameter: an option has no equals sign.
    """
    found: dict[str, str] = {}
    for each in given or []:
        key, separator, value = each.partition("=")
        if not separator:
            raise typer.BadParameter(f"{each!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found
