"""`longbatch migrate`: the tables of a database brought to this version."""

from typing import Annotated, Final

import typer
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from cli import local
from cli.admin import connected
from jobs.database import schema
from longbatch.cli.output import print_error, print_text

_EXIT_BEHIND: Final = 1
_EXIT_CODES: Final = "Exit codes: 0 done, 1 the database is behind or cannot be upgraded, 2 usage error."


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("migrate", epilog=_EXIT_CODES)(migrate)


def migrate(
    *,
    to: Annotated[str, typer.Option("--to", metavar="REVISION", help="Stop at this revision.")] = "head",
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if the database is behind.")
    ] = False,
) -> None:
    """Upgrade a database's tables to this version: LONGBATCH_DATABASE__URL, or the local stack's."""
    with connected(local.find_database) as engine:
        if not check:
            _upgrade(engine, to)
        with Session(engine) as session:
            current = schema.current(session)
    print_text(f"The database is at {current or 'no revision'}; this version needs {schema.head()}.")
    if check and current != schema.head():
        raise typer.Exit(_EXIT_BEHIND)


def _upgrade(engine: Engine, revision: str) -> None:
    from alembic.util import CommandError

    try:
        schema.upgrade(engine, revision)
    except CommandError as error:
        print_error(str(error))
        raise typer.Exit(_EXIT_BEHIND) from error
