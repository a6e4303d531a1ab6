"""Rounds of maintenance over many rows: one that cannot be moved is logged and left out for a while."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.database import transaction

_FIRST_PAUSE: Final = 10.0  # seconds
_MAX_PAUSE: Final = 3600.0
_MAX_ASIDE: Final = 1000  # ids in a query; beyond it the oldest ones are tried again

T = TypeVar("T")
# Of one column, the rows' ids.
Rows = Select[Any]


class Poisoned:
    """Rows that a round failed on, each left out for twice as long after every failure, up to an hour.

    They are remembered by this process alone: another one finds them by one failure each.

    Args:
        loop: its name in logs.
        clock: seconds that only grow.
    """

    def __init__(self, loop: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._rows: dict[UUID, tuple[int, float]] = {}

    def ids(self) -> list[UUID]:
        """Rows to leave out now."""
        now = self._clock()
        return [row_id for row_id, (_, until) in self._rows.items() if until > now]

    def put(self, row_id: UUID, error: BaseException) -> None:
        """Leave the row out for a while."""
        num_failures = self._rows.pop(row_id, (0, 0.0))[0] + 1
        pause = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** min(num_failures - 1, 10))
        self._rows[row_id] = num_failures, self._clock() + pause
        if len(self._rows) > _MAX_ASIDE:
            del self._rows[next(iter(self._rows))]
        telemetry.logger().error(
            telemetry.ROW_FAILED,
            loop=self._loop,
            row_id=str(row_id),
            num_failures=num_failures,
            error=type(error).__name__,
            exception=telemetry.describe_error((type(error), error, error.__traceback__)),
        )


def move_set(
    sessions: sessionmaker[Session],
    poisoned: Poisoned,
    rows: Rows,
    move: Callable[[Session, Sequence[UUID]], T],
    *,
    limit: int,
) -> list[T]:
    """Move some rows in one transaction; if that fails, in halves, down to the one that it fails on.

    Args:
        sessions: for the transactions.
        poisoned: rows to leave out; those that fail are added.
        rows: selects the ids of rows that are due.
        move: moves those of the rows that are still due.
        limit: rows at most.

    Returns:
        What `move` returned, for each transaction that was committed; empty: nothing was due.
    """
    (column,) = rows.selected_columns
    if aside := poisoned.ids():
        rows = rows.where(column.not_in(aside))
    with transaction(sessions) as session:
        found = session.scalars(rows.limit(limit)).all()
    return list(_in_halves(sessions, poisoned, found, move))


def is_disconnect(error: Exception) -> bool:
    """Whether the connection was lost, which is no row's fault."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def do_each(steps: Iterable[Callable[[], object]]) -> None:
    """Do every step, whether one before it failed or not; then raise the first failure."""
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # raised below
            failures.append(error)
    if failures:
        raise failures[0]


def _in_halves(
    sessions: sessionmaker[Session],
    poisoned: Poisoned,
    row_ids: Sequence[UUID],
    move: Callable[[Session, Sequence[UUID]], T],
) -> Iterator[T]:
    if not row_ids:
        return
    try:
        with transaction(sessions) as session:
            moved = move(session, row_ids)
    except Exception as error:
        if is_disconnect(error):
            raise
        if len(row_ids) == 1:
            poisoned.put(row_ids[0], error)
            return
        middle = len(row_ids) // 2
        yield from _in_halves(sessions, poisoned, row_ids[:middle], move)
        yield from _in_halves(sessions, poisoned, row_ids[middle:], move)
    else:
        yield moved
