"""The command `longbatch`: its verbs, and how errors end it."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cli.commands import (
    bench,
    demo,
    doctor,
    documents,
    engine,
    estimate,
    inspect,
    jobs,
    keys,
    summarize,
    tenants,
    up,
    watch,
    watch_folder,
    webhooks,
)
from jobs.errors import LongbatchError
from jobs.version import version

app = typer.Typer(
    name="longbatch",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
demo.register(app)
up.register(app)
summarize.register(app)
estimate.register(app)
watch_folder.register(app)
documents.register(app)
jobs.register(app)
watch.register(app)
tenants.register(app)
keys.register(app)
webhooks.register(app)
engine.register(app)
inspect.register(engine.app)
bench.register(app)
doctor.register(app)


def _show_version(*, is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"longbatch {version()}\n")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Say which release this is."),
    ] = False,
) -> None:
    # Typer takes an application's only command for the application itself, unless it has a callback.
    """Summarize documents in bulk, and run other long-context batch jobs, on an LLM on NVIDIA Triton.

    First `longbatch up`, then `longbatch summarize FOLDER` in another terminal.
    """


def main() -> None:
    """Runs the verb on the command line; an expected error is one line and exit code 1."""
    try:
        app()
    except LongbatchError as error:
        Console(stderr=True, highlight=False).print(f"[red]error:[/] {escape(error.message)}", soft_wrap=True)
        sys.exit(1)
