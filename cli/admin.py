"""What the commands for tenants and keys share: a database transaction, and times on the command line."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import typer
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from cli import local
from jobs import audit, database
from jobs.errors import LongbatchError
from jobs.settings import DatabaseSettings
from longbatch.cli import output

# The largest limits that columns hold: of jobs and requests, and of tokens and bytes.
MOST: Final = 2**31 - 1
MOST_LONG: Final = 2**63 - 1
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_SPAN: Final = re.compile(r"(\d{1,6})([mhd])")


def not_zero(value: int | None) -> int | None:
    """Refuse 0 as the value of an option where -1 means that there is none."""
    if value == 0:
        raise typer.BadParameter("0 is not in the range x>=1; -1 takes the limit back")
    return value


@contextmanager
def transaction() -> Iterator[Session]:
    """Open a transaction. Its errors end the command with one line and an exit code."""
    with (
        connected(local.find_database) as engine,
        Session(engine, expire_on_commit=False) as session,
        session.begin(),
    ):
        audit.act_as(session, audit.user_of_process())
        yield session


@contextmanager
def connected(find: Callable[[], DatabaseSettings]) -> Iterator[Engine]:
    """Connect to the database that `find` finds; errors end the command as those of a transaction do."""
    try:
        engine = database.make_engine(find(), pool_size=1, name="longbatch-admin")
        try:
            yield engine
        finally:
            engine.dispose()
    except LongbatchError as error:
        output.print_error(error.message)
        raise typer.Exit(1) from error
    except OperationalError as error:
        output.print_error("cannot connect to the database")
        raise typer.Exit(output.EXIT_UNREACHABLE) from error
    except ProgrammingError as error:
        output.print_error("the database schema belongs to another version, or its login lacks permission")
        raise typer.Exit(1) from error


def parse_span(text: str, *, option: str) -> timedelta:
    """Parse `30m`, `12h`, `7d` or `0` into a span.

    Raises:
        typer.BadParameter: the text has another form.
    """
    if text == "0":
        return timedelta(0)
    found = _SPAN.fullmatch(text)
    if found is None:
        raise typer.BadParameter("must look like 30m, 12h or 7d", param_hint=option)
    return timedelta(**{_UNITS[found.group(2)]: int(found.group(1))})


def shown(moment: datetime | None) -> str:
    """Format the moment in local time; return an empty string for None."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M") if moment else ""
