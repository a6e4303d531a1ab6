"""Ends of runs that are stored alone: each in a transaction of its own, which waits for nothing."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.checkpoints import Output
from jobs.database import is_full, transaction
from jobs.errors import LongbatchError
from jobs.settings import Settings
from jobs.states import JobState
from jobs.trees import progress as tree_progress
from worker.inference.leases import LeaseKeeper, RunningJob
from worker.inference.outcome import Failed, Finished, RunEnd, write_outcome

# One thread stores the ends of all tenants and claims for them, and whoever holds a row may keep it for as
# long as it likes. A statement gets this long at first, twice as long each time it was tried.
_WAIT_FOR_NOTHING: Final = "SET LOCAL lock_timeout = '1ms'"
_STATEMENT_SECONDS: Final = 1.0
# An end that found a row locked is tried again after this long, then after twice as long, up to a second.
_RETRY_SECONDS: Final = 0.01
_MAX_RETRY_SECONDS: Final = 1.0
# What a round spends on ends that were not tried before (claims wait meanwhile), and on the others. One of
# each is always tried.
_FIRST_TRIES_TAKE_SECONDS: Final = 1.0
_RETRIES_TAKE_SECONDS: Final = 0.01
# A worker that stops tries no end for longer. Then its lease runs out, and the job is rescued.
_EXIT_SECONDS: Final = 5.0
# Classes of SQLSTATE: connection lost, out of resources, shutting down.
_AWAY: Final = ("08", "53", "57P")
# How often an end is tried again at once that violated a constraint: what it refers to may just have gone.
_MAX_VIOLATIONS: Final = 2
_NOTHING: Final = Output(text="", packed_ids=b"", num_tokens=0)


class UnrecordableError(LongbatchError):
    """The answer cannot be stored."""

    code = "internal_error"


class TreeHeldError(Exception):
    """Another transaction holds the tree that the job is part of."""


_UNRECORDABLE: Final = Failed(UnrecordableError())


@dataclass(frozen=True, slots=True)
class StoredEnd:
    """What became of an end.

    Attributes:
        state: the job's new state; None if its lease is lost, or the end could not be stored.
        may_have_deliveries: a webhook may want it.
    """

    state: JobState | None
    may_have_deliveries: bool = True


NOT_STORED: Final = StoredEnd(None, may_have_deliveries=False)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that ended and is not stored yet.

    Attributes:
        running: the job; its lease is the fence.
        end: how it ended.
        output: what it generated, possibly nothing.
        handed_in_at: by the monotonic clock; or later, when the database was last found away.
        stored: gets what became of it.
        num_tries: how often storing it alone failed.
        is_tree_held: the last time, because another transaction held its tree.
    """

    running: RunningJob
    end: RunEnd
    output: Output
    handed_in_at: float
    stored: "Future[StoredEnd]"
    num_tries: int = 0
    is_tree_held: bool = False

    @property
    def can_share(self) -> bool:
        """True if nothing is wrong with the end, so that it may share a transaction."""
        return self.is_tree_held and isinstance(self.end.outcome, Finished)


class LoneEnds:
    """The ends that are stored alone. Any thread adds; one thread stores."""

    def __init__(
        self,
        settings: Settings,
        sessions: sessionmaker[Session],
        *,
        stopping: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without ends.

        Args:
            settings: of this process.
            sessions: of its database.
            stopping: set when the process is shutting down.
            clock: a monotonic clock, in seconds.
        """
        self._settings = settings.jobs
        self._max_statement_seconds = settings.database.statement_timeout_seconds
        self._clock = clock
        self._sessions = sessions
        self._stopping = stopping
        self._waiting: list[EndedRun] = []
        self._lock = threading.Lock()

    def add(self, ended: Iterable[EndedRun]) -> None:
        """Leave these ends for the next round."""
        with self._lock:
            self._waiting += ended

    def store(self, *, wake: Callable[[], object], wake_within: Callable[[float], object]) -> list[EndedRun]:
        """Store every end that can be stored now; the others stay, and hold up none.

        Args:
            wake: called if any was stored, as a slot may be free, or if there was no time for some.
            wake_within: called with the seconds after which to try the others.

        Returns:
            Ends that wait for their trees alone. They do not stay: the caller stores them together.
        """
        with self._lock:
            waiting, self._waiting = self._waiting, []
        first = deque(each for each in waiting if not each.num_tries)
        again = deque(each for each in waiting if each.num_tries)
        tried: list[EndedRun] = []
        is_reachable = self._try_some(first, tried, seconds=_FIRST_TRIES_TAKE_SECONDS) and self._try_some(
            again, tried, seconds=_RETRIES_TAKE_SECONDS
        )
        left = [*first, *again]
        if not is_reachable:
            left = [replace(each, handed_in_at=self._clock()) for each in left]
        with self._lock:
            self._waiting[:0] = left  # before those that failed just now
            num_tries = min((each.num_tries for each in self._waiting), default=None)
            shared = [each for each in self._waiting if each.can_share]
            self._waiting = [each for each in self._waiting if not each.can_share]
        if is_reachable and (first or any(each.stored.done() for each in tried)):
            wake()
        if num_tries is not None and is_reachable:
            wake_within(min(_MAX_RETRY_SECONDS, _RETRY_SECONDS * 2 ** min(num_tries, 10)))
        return shared

    def _try_some(self, waiting: deque[EndedRun], tried: list[EndedRun], *, seconds: float) -> bool:
        """Try one end, and more of them for as long as there is time; move them to those tried.

        Returns:
            False if the database cannot be reached.
        """
        until = self._clock() + seconds
        is_reachable, is_time = True, True
        while waiting and is_reachable and is_time:
            tried.append(waiting.popleft())
            is_reachable = self._try(tried[-1])
            is_time = self._clock() < until
        return is_reachable

    def _try(self, ended: EndedRun) -> bool:
        """Store one end, or keep it for later.

        Returns:
            False if the database cannot be reached.
        """
        try:
            self._store(ended)
        except (SQLAlchemyError, TreeHeldError) as error:
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="record", error=type(error).__name__)
            is_stopping = self._stopping.is_set()
            is_away = is_full(error) or (_is_away(error) and (is_stopping or not self._can_connect()))
            if is_away and not is_stopping:  # the fence decides if another worker got the job meanwhile
                ended = replace(ended, handed_in_at=self._clock(), num_tries=ended.num_tries + 1)
                self.add([replace(ended, is_tree_held=False)])
                return False
            # Another worker has the job by then.
            limit = _EXIT_SECONDS if is_stopping else 2 * self._settings.lease_seconds
            if is_away or self._clock() > ended.handed_in_at + limit:
                ended.stored.set_result(NOT_STORED)
            else:
                is_held = isinstance(error, TreeHeldError)
                self.add([replace(ended, num_tries=ended.num_tries + 1, is_tree_held=is_held)])
        except BaseException:  # noqa: BLE001  # the lease runs out and the job is rescued
            telemetry.logger().exception(telemetry.LOOP_FAILED, loop="record")
            ended.stored.set_result(NOT_STORED)
        return True

    def _can_connect(self) -> bool:
        """Return True if the database answers: then the end itself broke its connection."""
        try:
            with self._sessions() as session:
                session.execute(text("SELECT 1"))
        except SQLAlchemyError:
            return False
        return True

    def _store(self, ended: EndedRun, *, num_violations: int = 0) -> None:
        """Store one end. If the database rejects the data itself, the job fails instead.

        It would be rejected wherever it ran. The fence makes retries safe even if the result of a commit is
        unknown or another worker has the job by now.
        """
        lease, tree_id = ended.running.lease, ended.running.summary_id
        try:
            with transaction(self._sessions) as session:
                session.connection().exec_driver_sql(f"{_WAIT_FOR_NOTHING}; {self._limit(ended)}")
                if tree_id is not None and tree_progress.is_held(session, tree_id):
                    raise TreeHeldError
                LeaseKeeper.report_first_token(session, ended.running)
                state = write_outcome(session, lease, ended.end, ended.output, settings=self._settings)
        except (DataError, IntegrityError, UnicodeError) as error:
            telemetry.logger().error(telemetry.LOOP_FAILED, loop="record", error=type(error).__name__)
            if isinstance(error, IntegrityError) and num_violations < _MAX_VIOLATIONS:
                self._store(ended, num_violations=num_violations + 1)
                return
            if ended.end.outcome == _UNRECORDABLE:
                ended.stored.set_result(NOT_STORED)
                return
            end = replace(ended.end, outcome=_UNRECORDABLE)
            self._store(replace(ended, end=end, output=_NOTHING))
        else:
            ended.stored.set_result(StoredEnd(state))

    def _limit(self, ended: EndedRun) -> str:
        """Return the statement that limits the time of the others."""
        seconds = min(_STATEMENT_SECONDS * 2 ** min(ended.num_tries, 10), self._max_statement_seconds)
        return f"SET LOCAL statement_timeout = {int(seconds * 1000)}"


def _is_away(error: Exception) -> bool:
    """Return True if this may be because the database cannot be reached."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, PoolTimeoutError)
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return error.connection_invalidated or state.startswith(_AWAY)
