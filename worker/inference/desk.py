"""The desk: runs hand in how they ended; one tick stores them together and starts what fits next."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
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

from jobs import lifecycle, telemetry
from jobs.checkpoints import Output
from jobs.database import is_full, transaction
from jobs.errors import LongbatchError
from jobs.finishing import JobEnd, StoredEnd
from jobs.scheduling import tick
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.tick import Tick
from jobs.settings import Settings
from jobs.starting import StartRefusedError
from worker.inference.outcome import Failed, RunEnd, write_outcome
from worker.inference.refused_starts import RefusedStarts
from worker.inference.run import Run

# One thread stores the ends of all tenants and claims for them. A statement of a tick that stores ends may
# take this long, and wait this long for a lock. That of an end set apart may take this long at first,
# then twice as long each time it was tried; it waits for no lock.
_TICK_STATEMENT_SECONDS: Final = 5.0
_TICK_LOCK_SECONDS: Final = 1.0
_STATEMENT_SECONDS: Final = 1.0
_LOCK_SECONDS: Final = 0.001
# An end that cannot be stored is tried again after this long, then after twice as long, up to a second.
_RETRY_SECONDS: Final = 0.01
_MAX_RETRY_SECONDS: Final = 1.0
# What a tick spends on ends set apart that were not tried before (claims wait meanwhile), and on the others.
# One of each is always tried.
_FIRST_TRIES_TAKE_SECONDS: Final = 1.0
_RETRIES_TAKE_SECONDS: Final = 0.01
# A worker that stops tries no end for longer. Then its lease runs out, and the job is rescued.
_EXIT_SECONDS: Final = 5.0
# Classes of SQLSTATE: connection lost, out of resources, shutting down.
_AWAY: Final = ("08", "53", "57P")
# How often an end is tried again at once that violated a constraint: what it refers to may just have gone.
_MAX_VIOLATIONS: Final = 2
_NOTHING: Final = Output(text="", ids=(), num_tokens=0)


class UnrecordableError(LongbatchError):
    """The answer cannot be stored."""

    code = "internal_error"


_UNRECORDABLE: Final = Failed(UnrecordableError())
NOT_STORED: Final = StoredEnd(None)


@dataclass(frozen=True, slots=True)
class _EndedRun:
    """A run that ended and is not stored yet.

    Attributes:
        run: its lease is the fence.
        end: how it ended.
        output: what it generated, possibly nothing.
        handed_in_at: by the clock of the desk; or later, when the database was last found away.
        stored: gets what became of it.
        num_tries: how often it could not be stored.
    """

    run: Run
    end: RunEnd
    output: Output
    handed_in_at: float
    stored: "Future[StoredEnd]"
    num_tries: int = 0


class Desk:
    """The ended runs of one engine. Any thread hands in; one thread ticks.

    All that ended shares a transaction with the claims of the tick. If it fails, each end is set apart and
    stored in a transaction of its own, so that whatever is wrong with one run, the others do not notice. An
    end whose row or tree is locked shares the next tick.
    A job that the database refuses to start is set aside, and the next tick starts the others.
    """

    def __init__(
        self,
        settings: Settings,
        sessions: sessionmaker[Session],
        *,
        stopping: threading.Event,
        wake: Callable[[], object] = lambda: None,
        wake_within: Callable[[float], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without ended runs.

        Args:
            settings: of this process.
            sessions: of its database.
            stopping: set when the process is shutting down.
            wake: called when there is work.
            wake_within: called in a tick when there will be work in so many seconds.
            clock: a monotonic clock, in seconds.
        """
        self._settings = settings
        self._sessions = sessions
        self._stopping = stopping
        self.wake = wake
        self.wake_within = wake_within
        self._clock = clock
        self._waiting: list[_EndedRun] = []
        self._apart: list[_EndedRun] = []  # used by the ticking thread
        self._refused = RefusedStarts(settings, sessions)
        self._lock = threading.Lock()

    def hand_in(self, run: Run, end: RunEnd, output: Output) -> "Future[StoredEnd]":
        """Leave the end of a run for the next tick, which is soon.

        Args:
            run: that ended.
            end: how its run ended.
            output: what it generated.
        """
        ended = _EndedRun(run, end, output, self._clock(), Future())
        ended.stored.set_running_or_notify_cancel()  # a run that is cancelled must not fail the tick
        self._wait([ended])
        self.wake()
        return ended.stored

    def tick(
        self,
        policy: ClaimPolicy | None,
        *,
        start: Callable[[Tick], object] = lambda _: None,
    ) -> Tick:
        """Store what was handed in, and start every job that fits then.

        An end that cannot be stored now stays for the next tick. Raises only in a tick without ends whose
        claims fail.

        Args:
            policy: of the claims; None: start nothing.
            start: called with what was claimed, once that is committed, before any end set apart is stored.
        """
        with self._lock:
            together, self._waiting = self._waiting, []
        result = Tick()
        try:
            if together or policy is not None:
                result = self._store_together(together, policy)
            start(result)
            if result.claims:
                self._refused.fail_all()
            return result
        finally:
            self._store_apart()

    def _wait(self, ended: Sequence[_EndedRun]) -> None:
        """Leave these ends for the next tick."""
        with self._lock:
            self._waiting += ended

    def _store_together(self, together: Sequence[_EndedRun], policy: ClaimPolicy | None) -> Tick:
        """Store these ends and start jobs in one transaction; if it fails, set the ends apart."""
        try:
            with transaction(self._sessions) as session:
                if together:
                    self._limit(session, _TICK_STATEMENT_SECONDS, lock_seconds=_TICK_LOCK_SECONDS)
                self._refused.leave_out(session)
                result = tick.tick(
                    session,
                    self._settings.engine.name,
                    policy,
                    ended=[self._written(each) for each in together],
                )
        except BaseException as error:
            self._apart += together
            if isinstance(error, StartRefusedError) and self._refused.set_aside(error.claims):
                self.wake()
            elif not together:
                raise
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="tick", error=type(error).__name__)
            return Tick()
        for each in together:
            self._resolve(each, result.stored.get(each.run.lease.lease_id))
        return result

    def _resolve(self, ended: _EndedRun, stored: StoredEnd | None) -> None:
        """Tell a run what became of its end; None: a row or tree is locked, so it shares the next tick."""
        if stored is not None:
            ended.stored.set_result(stored)
        elif (again := self._again(ended)) is not None:
            self._wait([again])

    def _again(self, ended: _EndedRun) -> _EndedRun | None:
        """Return the end as it is to be tried again, soon; None: another worker has the job by now."""
        limit = _EXIT_SECONDS if self._stopping.is_set() else 2 * self._settings.jobs.lease_seconds
        if self._clock() > ended.handed_in_at + limit:
            ended.stored.set_result(NOT_STORED)
            return None
        self.wake_within(min(_MAX_RETRY_SECONDS, _RETRY_SECONDS * 2 ** min(ended.num_tries, 10)))
        return replace(ended, num_tries=ended.num_tries + 1)

    def _store_apart(self) -> None:
        """Store every end that was set apart and can be stored now; the others stay, and hold up none."""
        first = deque(each for each in self._apart if not each.num_tries)
        again = deque(each for each in self._apart if each.num_tries)
        self._apart = []
        num_apart = len(first) + len(again)
        is_reachable = self._try_some(first, seconds=_FIRST_TRIES_TAKE_SECONDS) and self._try_some(
            again, seconds=_RETRIES_TAKE_SECONDS
        )
        self._apart[:0] = [*first, *again]  # before those that failed just now
        if not is_reachable:  # which is no end's fault
            self._wait([replace(each, handed_in_at=self._clock()) for each in self._apart])
            self._apart = []
        elif first or len(self._apart) < num_apart:  # no time for some, or a slot may be free
            self.wake()

    def _try_some(self, waiting: deque[_EndedRun], *, seconds: float) -> bool:
        """Try one end, and more of them for as long as there is time.

        Returns:
            False if the database cannot be reached.
        """
        until = self._clock() + seconds
        is_reachable, is_time = True, True
        while waiting and is_reachable and is_time:
            is_reachable = self._try(waiting.popleft())
            is_time = self._clock() < until
        return is_reachable

    def _try(self, ended: _EndedRun) -> bool:
        """Store one end, or keep it for later.

        Returns:
            False if the database cannot be reached.
        """
        try:
            self._resolve(ended, self._store(ended))
        except SQLAlchemyError as error:
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="record", error=type(error).__name__)
            is_stopping = self._stopping.is_set()
            is_away = is_full(error) or (_is_away(error) and (is_stopping or not self._can_connect()))
            if is_away and is_stopping:
                ended.stored.set_result(NOT_STORED)
            elif is_away:  # the fence decides if another worker got the job meanwhile
                self._apart.append(ended)
                return False
            elif (again := self._again(ended)) is not None:
                self._apart.append(again)
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

    def _store(self, ended: _EndedRun, *, num_violations: int = 0) -> StoredEnd | None:
        """Store one end. If the database rejects the data itself, the job fails instead.

        It would be rejected wherever it ran. The fence makes retries safe even if the result of a commit is
        unknown or another worker has the job by now.

        Returns:
            None if a row or tree is locked.
        """
        try:
            with transaction(self._sessions) as session:
                seconds = _STATEMENT_SECONDS * 2 ** min(ended.num_tries, 10)
                self._limit(session, seconds, lock_seconds=_LOCK_SECONDS)
                end = self._written(ended)
                return lifecycle.finish(session, [end]).get(end.key)
        except (DataError, IntegrityError, UnicodeError) as error:
            telemetry.logger().error(telemetry.LOOP_FAILED, loop="record", error=type(error).__name__)
            if isinstance(error, IntegrityError) and num_violations < _MAX_VIOLATIONS:
                return self._store(ended, num_violations=num_violations + 1)
            if ended.end.outcome == _UNRECORDABLE:
                return NOT_STORED
            failed = replace(ended.end, outcome=_UNRECORDABLE)
            return self._store(replace(ended, end=failed, output=_NOTHING))

    def _limit(self, session: Session, seconds: float, *, lock_seconds: float) -> None:
        """Limit the time of the transaction's statements, and what each may wait for a lock."""
        most = min(seconds, self._settings.database.statement_timeout_seconds)
        session.connection().exec_driver_sql(
            f"SET LOCAL statement_timeout = {int(most * 1000)};"
            f" SET LOCAL lock_timeout = {int(lock_seconds * 1000)}"
        )

    def _written(self, ended: _EndedRun) -> JobEnd:
        """Return what becomes of the job, with times as of now."""
        run = ended.run
        end = write_outcome(run.lease, ended.end, ended.output, settings=self._settings.jobs)
        since_answer = timedelta(seconds=self._clock() - ended.handed_in_at)
        since_first_token = run.unreported_since()
        if since_first_token is not None:
            since_answer = min(since_answer, since_first_token)
        return replace(
            end,
            since_first_token=since_first_token,
            since_answer=since_answer if end.verb == "complete" else None,
            summary_id=run.claim.job.summary_id,
        )


def _is_away(error: Exception) -> bool:
    """Return True if this may be because the database cannot be reached."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, PoolTimeoutError)
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return error.connection_invalidated or state.startswith(_AWAY)
