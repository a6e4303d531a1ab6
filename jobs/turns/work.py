"""Work on a row that was taken in turn, as the worker that takes it sees it, and how it is told to end."""

import threading
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Protocol, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session, sessionmaker

from jobs.errors import LongbatchError
from jobs.models.turn import Kind
from jobs.turns.lifecycle import Turn

Sessions = sessionmaker[Session]
T_co = TypeVar("T_co", covariant=True)


class Ending(Enum):
    """Why work under way should end before it is done."""

    LOST = "lost"  # another worker may have the row by now
    STOPPING = "stopping"  # this process ends; the row is given back


class InterruptedWorkError(LongbatchError):
    """The work was to end before it was done."""

    code = "work_interrupted"
    retryable = True


class Watch:
    """Tells work that is under way to end early; any thread may."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending: Ending | None = None
        self._on_end: Callable[[], None] | None = None

    @property
    def ending(self) -> Ending | None:
        """Why the work should end; None: it should go on."""
        return self._ending

    def end(self, why: Ending) -> None:
        """Tell the work to end; returns at once."""
        with self._lock:
            self._ending = self._ending or why
            on_end = self._on_end
        if on_end:
            on_end()

    def on_end(self, tell: Callable[[], None]) -> None:
        """Call this when the work should end, at once if it should already; it returns at once."""
        with self._lock:
            self._on_end = tell
            is_over = self._ending is not None
        if is_over:
            tell()

    def check(self) -> None:
        """Return if the work should go on.

        Raises:
            InterruptedWorkError: it should end; to be let through.
        """
        if self._ending is not None:
            raise InterruptedWorkError


class Work(Protocol[T_co]):
    """Work of one kind: what is done for a row, and how a row ends that nobody can do it for."""

    @property
    def kind(self) -> Kind:
        """Whose rows they are."""

    @property
    def lease(self) -> timedelta:
        """How long without renewal until another worker may take the row."""

    def do(self, sessions: Sessions, turn: Turn, watch: Watch) -> T_co | None:
        """Do the work in short transactions, with none open between them, and write its end under the fence.

        Returns:
            None: the lease was lost, or the row ended meanwhile; nothing was written.

        Raises:
            InterruptedWorkError: the watch said so.
            UnavailableError: something that the row has no part in does not answer.
        """

    def give_up(self, session: Session, turn: Turn) -> T_co | None:
        """End the row as failed, with a code that names the reason.

        Returns:
            None: the lease was lost.
        """

    def name_row(self, row_id: UUID) -> tuple[str, str]:
        """The field of a log line that names the row, and its value."""
