"""The command for sessions of the console: end those of a person or a key; it uses the database directly."""

from typing import Annotated

import typer

from cli.admin import transaction
from jobs.tenants import keys, sign_ins
from longbatch.cli.output import print_text

app = typer.Typer(no_args_is_help=True, help="Manage who is signed in to the console.")


def register(parent: typer.Typer) -> None:
    """Add the command to the application."""
    parent.add_typer(app, name="sessions")


@app.callback()
def _sessions() -> None:
    """Manage who is signed in to the console."""


@app.command()
def end(
    *,
    person: Annotated[
        str | None,
        typer.Option("--person", help="Name, as the audit log shows it, or the provider's `sub`."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="lb_ and 16 digits, as `keys list` shows it.")
    ] = None,
) -> None:
    """End all sessions of a person or a key; their open pages end within seconds."""
    if (person is None) == (key is None):
        raise typer.BadParameter("give one of --person and --key")
    with transaction() as session:
        if key is not None:
            number = sign_ins.end_of_key(session, keys.named(session, key))
        else:
            number = sign_ins.end_of_person(session, person or "")
    print_text(f"{number:,} ended")
