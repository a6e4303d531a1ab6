"""Rows that callers name and that must exist, and the fields they filter by."""

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from jobs.errors import NotFoundError

Found = TypeVar("Found")


def require(session: Session, query: Select[Found], *, kind: str) -> Found:
    """Read the query's row.

    Raises:
        NotFoundError: there is none; `kind` names it in the message.
    """
    found = session.scalar(query)
    if found is None:
        raise NotFoundError(f"There is no such {kind}.")
    return found


def matches(*fields: tuple[InstrumentedAttribute[Any], object | None]) -> list[ColumnElement[bool]]:
    """Return the conditions that these columns have these values; None leaves a column open."""
    return [column == value for column, value in fields if value is not None]
