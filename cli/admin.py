"""What the verbs for tenants and keys share: a transaction in the database, and times on the command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import typer
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from cli import local, output
from jobs import database
from jobs.errors import LongbatchError

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_SPAN: Final = re.compile(r"(\d{1,6})([mhd])")


@contextmanager
def transaction() -> Iterator[Session]:
    """One transaction in the database; errors end the verb with one line and exit code 1."""
    try:
        engine = database.make_engine(local.find_database(), pool_size=1, name="longbatch-admin")
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
        finally:
            engine.dispose()
    except LongbatchError as error:
        output.complain(error.message)
        raise typer.Exit(1) from error
    except OperationalError as error:
        output.complain("the database does not answer")
        raise typer.Exit(output.EXIT_UNREACHABLE) from error
    except ProgrammingError as error:
        output.complain("the database's schema is not this version's, or its login may not do this")
        raise typer.Exit(1) from error


def parse_span(text: str, *, option: str) -> timedelta:
    """`30m`, `12h`, `7d` as a span; `0` as none.

    Raises:
        typer.BadParameter: it is none of these.
    """
    if text == "0":
        return timedelta(0)
    found = _SPAN.fullmatch(text)
    if found is None:
        raise typer.BadParameter("give 30m, 12h or 7d", param_hint=option)
    return timedelta(**{_UNITS[found.group(2)]: int(found.group(1))})


def shown(moment: datetime | None) -> str:
    """The moment in local time; empty: there is none."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M") if moment else ""
