"""The application: its commands, which are loaded when they run, and how errors end it."""

import gc
import importlib
import sys
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from longbatch.cli.table import CLIENT_COMMANDS, SERVER_COMMANDS, has_server, module_of
from longbatch.cli.version import versions
from longbatch.errors import LongbatchError

_WIDTH: Final = 16
_EXIT_USAGE: Final = 2
_INSTALL: Final = "pipx install 'longbatch-server[local]'"


class Commands(TyperGroup):
    """The group of all commands. Help and completion see names and help lines alone."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  # Typer's
        super().__init__(**settings)
        for name, line in {**CLIENT_COMMANDS, **SERVER_COMMANDS}.items():
            self.add_command(TyperCommand(name, help=line))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401  # Typer's
        """Find the command that runs, and load it."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or (ctx.resilient_parsing and module_of(str(name)) is None):
            return name, command, rest  # completing a command of the server, which is not installed
        return name, self.load(str(name)), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002  # Typer's
        """List the commands, those of the server apart."""
        title = "Server commands" if has_server() else f"Server commands ({_INSTALL})"
        for heading, commands in (("Commands", CLIENT_COMMANDS), (title, SERVER_COMMANDS)):
            with formatter.section(heading):
                formatter.write_dl([*commands.items()])

    def load(self, name: str) -> Any:  # noqa: ANN401  # Typer's
        """Import the module of a command, and return the command.

        Raises:
            Exit: it is the server's, which is not installed.
        """
        module = module_of(name)
        if module is None:
            sys.stderr.write(f"error: `longbatch {name}` is part of longbatch-server: {_INSTALL}\n")
            raise typer.Exit(_EXIT_USAGE)
        app = typer.Typer()
        gc.disable()  # nothing that modules make is garbage: looking for it takes a third of a short command
        importlib.import_module(module).register(app)
        gc.freeze()
        gc.enable()
        return typer.main.get_group(app).commands[name]


def application() -> typer.Typer:
    """Build the application."""
    app = typer.Typer(
        name="longbatch",
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app


def _show_version(*, is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(versions() + "\n")
        raise typer.Exit


def _root(
    *,
    _version: bool = typer.Option(  # noqa: FBT001, RUF100
        False, "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
    ),
) -> None:
    """Summarize documents in bulk, ask them questions, extract their fields with an LLM.

    Start with `longbatch up`, then run `longbatch summarize FOLDER` in another terminal.
    """


def run() -> None:
    """Run the command line. An expected error prints one line and exits with code 1."""
    try:
        application()(prog_name="longbatch")
    except LongbatchError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(1)
