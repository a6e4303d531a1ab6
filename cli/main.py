"""The command `longbatch`: its verbs, and how errors end it."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cli import (
    demo_command,
    doctor,
    documents_commands,
    engine_bench,
    engine_commands,
    engine_inspect,
    estimate_command,
    jobs_commands,
    keys_commands,
    summarize_command,
    tenants_commands,
    up_command,
    watch_command,
    watch_folder_command,
    webhooks_commands,
)
from jobs.errors import LongbatchError
from jobs.version import version

app = typer.Typer(
    name="longbatch",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
demo_command.register(app)
up_command.register(app)
summarize_command.register(app)
estimate_command.register(app)
watch_folder_command.register(app)
documents_commands.register(app)
jobs_commands.register(app)
watch_command.register(app)
tenants_commands.register(app)
keys_commands.register(app)
webhooks_commands.register(app)
engine_commands.register(app)
engine_inspect.register(engine_commands.app)
engine_bench.register(app)
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
