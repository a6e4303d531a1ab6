"""Passes over everything that is sealed, until nothing is left to do."""

from typing import Final

from sqlalchemy import text

from jobs.database import transaction
from jobs.errors import LongbatchError
from jobs.files.storage import PartStore
from jobs.resealing import parts, rows
from jobs.resealing.places import Aim, sealed_tables
from jobs.resealing.rows import Progress, Sessions
from jobs.resealing.tally import Tally

_PASSES: Final = 3  # rows that others held are free by the second
_SEES_ALL: Final = text("""
    SELECT NOT row_security_active('texts')
        OR pg_has_role(current_user, (SELECT oid FROM pg_roles WHERE rolname = 'longbatch_worker'), 'USAGE')
""")


class HiddenRowsError(LongbatchError):
    """The database's login does not see the rows of all tenants; use that of the owner of the tables."""

    code = "rows_hidden"


def count(sessions: Sessions, store: PartStore, aim: Aim, *, tell: Progress) -> Tally:
    """Count all sealed and plain values by their keys; change nothing. Raises as `reseal` does."""
    return _pass(sessions, store, aim, writes=False, tell=tell)


def reseal(sessions: Sessions, store: PartStore, aim: Aim, *, tell: Progress) -> Tally:
    """Seal everything anew that is not sealed as the settings say.

    Returns:
        What the last pass saw, with the values that all passes sealed.

    Raises:
        HiddenRowsError: the login does not see all rows.
        UnavailableError: the store does not answer; what was done stays.
    """
    num_resealed = 0
    for _ in range(_PASSES):
        tally = _pass(sessions, store, aim, writes=True, tell=tell)
        num_resealed += tally.num_resealed
        if not tally.num_left:
            break
    tally.num_resealed = num_resealed
    return tally


def _pass(sessions: Sessions, store: PartStore, aim: Aim, *, writes: bool, tell: Progress) -> Tally:
    with transaction(sessions) as session:
        if not session.scalar(_SEES_ALL):
            raise HiddenRowsError
    tally = Tally()
    for each in sealed_tables():
        rows.walk(sessions, each, aim, tally, writes=writes, tell=tell)
    parts.walk(sessions, store, aim, tally, writes=writes, tell=tell)
    return tally
