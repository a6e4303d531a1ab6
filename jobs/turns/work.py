"""Work on a row that a worker took in turn: its contract, and the signal that ends it early."""

import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from enum import Enum
from typing import Protocol, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session, sessionmaker

from jobs.errors import LongbatchError
from jobs.models.turn import WorkKind
from jobs.turns.lifecycle import Room, Turn

Sessions = sessionmaker[Session]
T_co = TypeVar("T_co", covariant=True)


class Ending(Enum):
    """Why work under way should end early."""

    LOST = "lost"  # another worker may have the row by now
    STOPPING = "stopping"  # this process is stopping; the row is given back


class InterruptedWorkError(LongbatchError):
    """The work was interrupted before it was done."""

    code = "work_interrupted"
    retryable = True


class Interruption:
    """The signal for work under way to end early. Any thread may send it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending: Ending | None = None
        self._on_end: Callable[[], None] | None = None

    @property
    def ending(self) -> Ending | None:
        """Why the work should end; None: it should go on."""
        return self._ending

    def end(self, why: Ending) -> None:
        """Signal the work to end. Returns at once; the first reason counts."""
        with self._lock:
            self._ending = self._ending or why
            on_end = self._on_end
        if on_end:
            on_end()

    def on_end(self, call: Callable[[], None]) -> None:
        """Register what to call when the work should end.

        Calls it at once if the work should end already.

        Args:
            call: must return at once; any thread may call it.
        """
        with self._lock:
            self._on_end = call
            is_over = self._ending is not None
        if is_over:
            call()

    def check(self) -> None:
        """Check that the work should go on.

        Raises:
            InterruptedWorkError: it should end. Let it through.
        """
        if self._ending is not None:
            raise InterruptedWorkError


class Work(Protocol[T_co]):
    """Work of one kind: what a worker does for a row, and how it gives a row up."""

    @property
    def kind(self) -> WorkKind:
        """Kind of the rows."""

    @property
    def lease(self) -> timedelta:
        """How long a lease lasts without renewal; then another worker may take the row."""

    def do(self, sessions: Sessions, turn: Turn, watch: Interruption) -> T_co | None:
        """Do the work in short transactions, and write its end under the fence.

        No transaction is open between two of them.

        Returns:
            None if the lease was lost or the row ended meanwhile; nothing was written.

        Raises:
            InterruptedWorkError: the watch interrupted it.
            UnavailableError: something does not answer, through no fault of the row.
        """

    def give_up(self, session: Session, turn: Turn) -> T_co | None:
        """End the row as failed, with a code that names the reason.

        Returns:
            None if the lease was lost.
        """

    def name_row(self, row_id: UUID) -> tuple[str, str]:
        """Return the field that names the row in a log line, and its value."""


class SetWork(Work[T_co], Protocol[T_co]):
    """Work whose small rows are done together."""

    @property
    def room(self) -> Room:
        """How many rows one set may have."""

    def do_together(self, sessions: Sessions, turns: Sequence[Turn]) -> Collection[UUID]:
        """Do the work for those of these rows for which it succeeds in one go.

        Returns:
            The rows that it did, or whose lease was lost. Do the others one at a time, within the same
            attempt: errors belong to the row that caused them.
        """
