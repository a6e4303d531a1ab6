"""Maintenance rounds over many rows: a row that fails is logged and skipped for a while.

So is one over which the connection is lost: most often that is not its fault, but the server also cuts a
transaction that a row keeps for too long, and that row must not be the first again in the next round.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.database import is_full, transaction
from jobs.errors import StorageFullError

_FIRST_PAUSE: Final = 10.0  # seconds
_MAX_PAUSE: Final = 3600.0
_MAX_ASIDE: Final = 1000  # ids in a query; above it the oldest are tried again

T = TypeVar("T")
# A query with one column: the rows' ids.
Rows = Select[Any]


class FailingRows:
    """The rows that a round failed on; each failure doubles how long a row is skipped, up to an hour.

    Only this process remembers them: another process skips a row after its own first failure on it.

    Args:
        loop: the round's name in logs.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, loop: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._rows: dict[UUID, tuple[int, float]] = {}

    def ids(self) -> list[UUID]:
        """Return the rows to skip now."""
        now = self._clock()
        return [row_id for row_id, (_, until) in self._rows.items() if until > now]

    def skip(self, row_id: UUID, error: BaseException) -> None:
        """Skip the row for a while and log the failure."""
        num_failures = self._rows.pop(row_id, (0, 0.0))[0] + 1
        pause = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** min(num_failures - 1, 10))
        self._rows[row_id] = num_failures, self._clock() + pause
        if len(self._rows) > _MAX_ASIDE:
            del self._rows[next(iter(self._rows))]
        fields = {"loop": self._loop, "row_id": str(row_id), "num_failures": num_failures}
        telemetry.log_failure(telemetry.ROW_FAILED, error, **fields)


def move_set(
    sessions: sessionmaker[Session], failing: FailingRows, rows: Rows, move: Callable[..., T], *, limit: int
) -> list[T]:
    """Move due rows in one transaction; if that fails, halve the set until the failing row is alone.

    Args:
        sessions: opens the transactions.
        failing: the rows to skip; failing rows are added to it.
        rows: selects the ids of the due rows.
        move: moves those of the rows in `only` that are still due.
        limit: the maximum number of rows.

    Returns:
        What `move` returned, for each committed transaction; empty if nothing was due.
    """
    (column,) = rows.selected_columns
    if aside := failing.ids():
        rows = rows.where(column.not_in(aside))
    with transaction(sessions) as session:
        found = session.scalars(rows.limit(limit)).all()
    return list(_in_halves(sessions, failing, found, move))


def move_each(
    sessions: sessionmaker[Session],
    failing: FailingRows,
    rows: Rows,
    move: Callable[..., int],
    *,
    is_stopping: Callable[[], bool],
) -> None:
    """Move due rows one at a time until none is left; see `move_set`."""
    while not is_stopping():
        num_aside = len(failing.ids())
        num_moved = sum(move_set(sessions, failing, rows, move, limit=1))
        if not num_moved and len(failing.ids()) <= num_aside:
            break


def repeat(
    sessions: sessionmaker[Session], step: Callable[[Session], object], *, is_stopping: Callable[[], bool]
) -> None:
    """Run the step in one transaction after another until it returns nothing true."""
    is_more: object = True
    while is_more and not is_stopping():
        with transaction(sessions) as session:
            is_more = step(session)


def is_disconnect(error: BaseException) -> bool:
    """Return True if the connection was lost: what else is due would meet the same."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def do_each(steps: Iterable[Callable[[], object]]) -> None:
    """Run every step even if an earlier one fails, then raise the first failure."""
    failures: list[BaseException] = []
    for step in steps:
        try:
            step()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # raised below
            failures.append(error)
    if failures:
        raise failures[0]


def _in_halves(
    sessions: sessionmaker[Session], failing: FailingRows, row_ids: Sequence[UUID], move: Callable[..., T]
) -> Iterator[T]:
    if not row_ids:
        return
    try:
        with transaction(sessions) as session:
            moved = move(session, only=row_ids)
    except Exception as error:
        if is_full(error) or isinstance(error, StorageFullError):  # every row would meet it
            raise
        if len(row_ids) == 1:
            failing.skip(row_ids[0], error)
        if is_disconnect(error):
            raise
        if len(row_ids) == 1:
            return
        middle = len(row_ids) // 2
        yield from _in_halves(sessions, failing, row_ids[:middle], move)
        yield from _in_halves(sessions, failing, row_ids[middle:], move)
    else:
        yield moved
