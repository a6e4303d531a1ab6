"""Bytes that no row names: their transaction was rolled back, or its process died before it.

A part is put before the transaction that names it. That transaction takes no part that is older than an
hour (`files.add_part`), and only parts older than a day are swept, both by the database's clock and the time
in the part's key. A transaction that named the part in time and is still open would hold a lock on the table
of parts: so the last look is taken while nobody holds one.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from jobs.batch_models import FilePart
from jobs.database import database_now

NAMED_WITHIN: Final = timedelta(hours=1)  # a transaction lasts seconds; hosts' clocks may differ by minutes
SWEPT_AFTER: Final = timedelta(hours=24)
_OWNER: Final = text("SELECT system_identifier || '/' || current_database() FROM pg_control_system()")
_KEY: Final = re.compile("[0-9a-f]{32}")  # whatever has another name is not ours
_LOCK: Final = text("LOCK TABLE file_parts IN SHARE MODE NOWAIT")


def made_at(key: str) -> datetime:
    """Read the time of a part from its key, a UUIDv7: its first 48 bits are milliseconds since 1970."""
    return datetime.fromtimestamp((UUID(hex=key).int >> 80) / 1000, UTC)


def owner(session: Session) -> str:
    """Name this database, as no other is named: what it may sweep carries this name."""
    name: str = session.scalars(_OWNER).one()
    return name


def find(session: Session, keys: Sequence[str]) -> list[str]:
    """Find the parts among these that no row names, and that none will ever name.

    Returns:
        None of them while a transaction writes parts: the next round finds them.
    """
    before = database_now(session) - SWEPT_AFTER
    old = [key for key in keys if _KEY.fullmatch(key) and made_at(key) < before]
    if not (stray := _unnamed(session, old)):
        return []
    try:
        with session.begin_nested():
            session.execute(_LOCK)
            return _unnamed(session, stray)
    except OperationalError:  # somebody holds a lock
        return []


def _unnamed(session: Session, keys: Sequence[str]) -> list[str]:
    named = set(session.scalars(select(FilePart.key).where(FilePart.key.in_(keys)))) if keys else set()
    return [key for key in keys if key not in named]
