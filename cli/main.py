"""The command `longbatch`: its subcommands, and how errors end it."""

import importlib
import sys
from collections.abc import Collection, Mapping
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from jobs.errors import LongbatchError
from jobs.version import version

# The modules of cli.commands, in the order of the help, with the commands that each registers.
_MODULES: Final[Mapping[str, Collection[str]]] = {
    "demo": ["demo"],
    "up": ["up"],
    "console": ["console"],
    "summarize": ["summarize"],
    "estimate": ["estimate"],
    "ask": ["ask"],
    "extract": ["extract"],
    "watch_folder": ["watch-folder"],
    "documents": ["documents"],
    "jobs": ["submit", "list", "show", "result", "cancel"],
    "watch": ["watch"],
    "tenants": ["tenants"],
    "keys": ["keys"],
    "sessions": ["sessions"],
    "webhooks": ["webhooks"],
    "content": ["content"],
    "engine": ["engine"],
    "adapters": ["adapters"],
    "audit": ["audit"],
    "bench": ["bench"],
    "doctor": ["doctor"],
}


def application(wanted: str | None = None) -> typer.Typer:
    """Build the application with this command alone, or with all if none is of that name.

    The modules of all take a second to import, and no command needs the others.
    """
    app = typer.Typer(
        name="longbatch", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(_root)
    modules = [module for module, commands in _MODULES.items() if wanted in commands]
    for module in modules or _MODULES:
        importlib.import_module(f"cli.commands.{module}").register(app)
    return app


def _show_version(*, is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"longbatch {version()}\n")
        raise typer.Exit


def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    # Without a callback, Typer treats an application's only command as the application itself.
    """Summarize documents in bulk and run other long-context batch jobs with an LLM on NVIDIA Triton.

    Start with `longbatch up`, then run `longbatch summarize FOLDER` in another terminal.
    """


def main() -> None:
    """Run the command line. An expected error prints one line and exits with code 1."""
    try:
        application(next(iter(sys.argv[1:]), None))()
    except LongbatchError as error:
        Console(stderr=True, highlight=False).print(f"[red]error:[/] {escape(error.message)}", soft_wrap=True)
        sys.exit(1)
