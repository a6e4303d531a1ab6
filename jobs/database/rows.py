"""Rows that callers name, and that must exist."""

from typing import TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Session

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
