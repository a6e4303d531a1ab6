"""The command `longbatch`: its subcommands, and how errors end it."""

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
        app()
    except LongbatchError as error:
        Console(stderr=True, highlight=False).print(f"[red]error:[/] {escape(error.message)}", soft_wrap=True)
        sys.exit(1)
