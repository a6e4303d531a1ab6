"""Bytes that no row names: their transaction was rolled back, or its process died before it.

A part is put before the transaction that names it. That transaction refuses a part older than an hour
(`files.add_part`), and the sweep only considers parts older than a day; both go by the database's clock and
the time in the part's key. A transaction that named the part in time and is still open would hold a lock on
the table of parts, so the final check runs while nothing holds one.

One check proves nothing: a database that was recreated, or that a dump is being loaded into, names nothing
yet. So the first check only notes a part, and the part is removed when no row has named it for a week. Each
note records the table of parts it was taken from: a dump restores old notes, but into a new table, where they
do not count.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import delete, or_, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from jobs.database import database_now
from jobs.models.file import FilePart
from jobs.models.stray_part import StrayPart
from jobs.tenants.cache_salts import installation_id

NAMED_WITHIN: Final = timedelta(hours=1)  # a transaction lasts seconds; hosts' clocks may differ by minutes
SWEPT_AFTER: Final = timedelta(hours=24)
NOTED_FOR: Final = timedelta(days=7)  # time for an operator who emptied a database to notice and restore it
# A part that the sweep has not seen for this long is noted again; the sweep visits each part within hours.
_FORGOTTEN_AFTER: Final = timedelta(days=60)
_FORGOTTEN_AT_ONCE: Final = 1000
_SERVER: Final = text("SELECT system_identifier || '/' || current_database() FROM pg_control_system()")
# The table's file: CREATE TABLE and TRUNCATE give it another one, and so does every way to load a dump.
# VACUUM FULL does too, and restarts the week.
_CATALOGUE: Final = text(
    "SELECT system_identifier || '/' || pg_database.oid || '/' || pg_relation_filenode('file_parts')"
    " FROM pg_control_system(), pg_database WHERE datname = current_database()"
)
_KEY: Final = re.compile("[0-9a-f]{32}")  # files with other names are not ours
_LOCK: Final = text("LOCK TABLE file_parts IN SHARE MODE NOWAIT")


def made_at(key: str) -> datetime:
    """Read the creation time from a part's key, a UUIDv7.

    Its first 48 bits are milliseconds since 1970.
    """
    return datetime.fromtimestamp((UUID(hex=key).int >> 80) / 1000, UTC)


def owner(session: Session) -> str:
    """Return a name unique to this database; the parts it may sweep carry it.

    The random id distinguishes it from one created later on the same server, the server from one that a dump
    created.
    """
    server: str = session.scalars(_SERVER).one()
    return f"{server}/{installation_id(session)}"


def catalogue(session: Session) -> str:
    """Return a name for the table of parts that no earlier or later table has."""
    name: str = session.scalars(_CATALOGUE).one()
    return name


def take(session: Session, keys: Sequence[str]) -> list[str]:
    """Note the parts among `keys` that no row names; return those noted a week ago.

    The caller removes the returned parts after this transaction commits; a part it leaves is noted again.

    Returns:
        Nothing while another transaction writes parts: a later round finds them.
    """
    now = database_now(session)
    old = [key for key in keys if _KEY.fullmatch(key) and made_at(key) < now - SWEPT_AFTER]
    stray = _unnamed(session, old)
    _forget(session, sorted(set(old) - set(stray)))
    if not (overdue := _note(session, stray, now=now)):
        return []
    try:
        with session.begin_nested():
            session.execute(_LOCK)
            taken = _unnamed(session, overdue)
    except OperationalError:  # another transaction holds a lock
        return []
    _forget(session, taken)
    return taken


def forget_old(session: Session) -> None:
    """Forget up to 1000 notes of parts that no longer exist."""
    before = database_now(session) - _FORGOTTEN_AFTER
    found = select(StrayPart.key).where(StrayPart.seen_at < before).limit(_FORGOTTEN_AT_ONCE)
    _forget(session, sorted(session.scalars(found)))


def _note(session: Session, keys: Sequence[str], *, now: datetime) -> list[str]:
    """Note parts seen for the first time in this table; return those noted long ago."""
    if not keys:
        return []
    here = catalogue(session)
    rows = [{"key": key, "seen_in": here, "seen_at": now} for key in sorted(keys)]
    noted = insert(StrayPart).values(rows)
    session.execute(
        noted.on_conflict_do_update(
            index_elements=[StrayPart.key],
            set_={"seen_in": noted.excluded.seen_in, "seen_at": noted.excluded.seen_at},
            # A note taken while the clock was ahead must not keep its part forever.
            where=or_(StrayPart.seen_in != noted.excluded.seen_in, StrayPart.seen_at > now),
        )
    )
    overdue = select(StrayPart.key).where(StrayPart.key.in_(keys), StrayPart.seen_at < now - NOTED_FOR)
    return list(session.scalars(overdue))


def _forget(session: Session, keys: Sequence[str]) -> None:
    if keys:
        session.execute(delete(StrayPart).where(StrayPart.key.in_(keys)))


def _unnamed(session: Session, keys: Sequence[str]) -> list[str]:
    named = set(session.scalars(select(FilePart.key).where(FilePart.key.in_(keys)))) if keys else set()
    return [key for key in keys if key not in named]
