"""The desk: runs hand in how they ended; one tick stores them together and starts what fits next."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.errors import LongbatchError
from jobs.scheduling import ticks
from jobs.scheduling.claims import ClaimResult, Preview
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.ticks import CompletedRun
from jobs.settings import Settings
from jobs.states import JobState
from jobs.transitions import JobCompletion
from worker.inference.leases import LeaseKeeper, RunningJob
from worker.inference.outcome import Failed, Finished, RunEnd, write_outcome

# For a row that is only being written, such as by a renewal. The one thread of all ends waits meanwhile.
_WAIT_BRIEFLY: Final = text("SET LOCAL lock_timeout = '250ms'")
_NOTHING: Final = Output(text="", packed_ids=b"", num_tokens=0)


class UnrecordableError(LongbatchError):
    """The answer cannot be stored."""

    code = "internal_error"


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


_NOT_STORED: Final = StoredEnd(None, may_have_deliveries=False)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that ended and is not stored yet.

    Attributes:
        running: the job; its lease is the fence.
        end: how it ended.
        output: what it generated, possibly nothing.
        give_up_at: monotonic time after which it is no longer tried: another worker has the job by then.
        stored: gets what became of it.
    """

    running: RunningJob
    end: RunEnd
    output: Output
    give_up_at: float
    stored: "Future[StoredEnd]"


class Desk:
    """The ended runs of one engine. Any thread hands in; one thread ticks.

    Complete answers share a transaction, with each other and with the claims of the tick. Everything else has
    one of its own, and so has an answer that the shared one did not store: whatever is wrong with one run,
    the others do not notice.
    """

    def __init__(
        self,
        settings: Settings,
        sessions: sessionmaker[Session],
        *,
        stopping: threading.Event,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        """Args: stopping: set when the process is shutting down. wake: called when there is work."""
        self._settings = settings
        self._sessions = sessions
        self._stopping = stopping
        self.wake = wake
        self._waiting: list[EndedRun] = []
        self._apart: list[EndedRun] = []
        self._lock = threading.Lock()

    def hand_in(self, running: RunningJob, end: RunEnd, output: Output) -> "Future[StoredEnd]":
        """Leave the end of a run for the next tick, which is soon."""
        give_up_at = time.monotonic() + 2 * self._settings.jobs.lease_seconds
        ended = EndedRun(running, end, output, give_up_at, Future())
        with self._lock:
            (self._waiting if isinstance(end.outcome, Finished) else self._apart).append(ended)
        self.wake()
        return ended.stored

    def tick(
        self,
        policy: ClaimPolicy | None,
        preview: Preview | None = None,
        *,
        start: Callable[[ClaimResult], object] = lambda _: None,
    ) -> ClaimResult:
        """Store what was handed in, and start every job that fits then.

        An end that cannot be stored now stays for the next tick. Fails only if claims do and nothing else was
        to be done with them.

        Args:
            policy: of the claims; None: start nothing.
            preview: as in `claims.claim_all`; used only if a run has ended.
            start: called with what was claimed, before ends that may have to wait are stored.
        """
        with self._lock:
            together, self._waiting = self._waiting, []
        result = ClaimResult()
        try:
            if together or policy is not None:
                result = self._store_together(together, policy, preview if together else None)
            start(result)
            return result
        finally:
            self._store_apart()

    def _store_together(
        self, together: Sequence[EndedRun], policy: ClaimPolicy | None, preview: Preview | None
    ) -> ClaimResult:
        ended = [
            CompletedRun(_completion(each, each.end.outcome), each.end.engine_is_done)
            for each in together
            if isinstance(each.end.outcome, Finished)
        ]
        try:
            with transaction(self._sessions) as session:
                result = ticks.tick(session, self._settings.engine.name, policy, ended=ended, preview=preview)
        except Exception as error:
            if not together:
                raise
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="tick", error=type(error).__name__)
            self._set_apart(together)
            return ClaimResult()
        for each in together:
            if each.running.lease.job_id in result.completed.job_ids:
                wants = result.completed.has_deliveries
                each.stored.set_result(StoredEnd(JobState.COMPLETED, may_have_deliveries=wants))
        self._set_apart(each for each in together if not each.stored.done())
        return result.claimed

    def _set_apart(self, ended: Iterable[EndedRun]) -> None:
        with self._lock:
            self._apart += ended

    def _store_apart(self) -> None:
        """Store each of these ends in a transaction of its own; without a database, try again later."""
        with self._lock:
            waiting, self._apart = self._apart, []
        if not waiting:
            return
        while waiting:
            ended = waiting.pop(0)
            is_last = self._stopping.is_set() or time.monotonic() > ended.give_up_at
            try:
                self._store(ended, is_last=is_last)
            except SQLAlchemyError as error:
                telemetry.logger().warning(telemetry.LOOP_FAILED, loop="record", error=type(error).__name__)
                if is_last:
                    ended.stored.set_result(_NOT_STORED)
                    continue
                self._set_apart([*waiting, ended])  # last: it may be what others would wait for
                return
            except Exception:  # noqa: BLE001  # the lease runs out and the job is rescued
                telemetry.logger().exception(telemetry.LOOP_FAILED, loop="record")
                ended.stored.set_result(_NOT_STORED)
        # Slots that became free here are filled by the next tick, which is due at once.
        self.wake()

    def _store(self, ended: EndedRun, *, is_last: bool) -> None:
        """Store one end. If the database rejects the data itself, the job fails instead.

        It would be rejected wherever it ran. The fence makes retries safe even if the result of a commit is
        unknown or another worker has the job by now.

        Args:
            ended: the end.
            is_last: there is no next tick that could find its rows free, so wait for them.
        """
        lease, settings = ended.running.lease, self._settings.jobs
        try:
            with transaction(self._sessions) as session:
                if not is_last:
                    session.execute(_WAIT_BRIEFLY)
                LeaseKeeper.report_first_token(session, ended.running)
                state = write_outcome(session, lease, ended.end, ended.output, settings=settings)
        except (DataError, IntegrityError, UnicodeError) as error:
            telemetry.logger().error(telemetry.LOOP_FAILED, loop="record", error=type(error).__name__)
            if ended.end.outcome == _UNRECORDABLE:
                ended.stored.set_result(_NOT_STORED)
                return
            end = replace(ended.end, outcome=_UNRECORDABLE)
            self._store(replace(ended, end=end, output=_NOTHING), is_last=is_last)
        else:
            ended.stored.set_result(StoredEnd(state))


def _completion(ended: EndedRun, outcome: Finished) -> JobCompletion:
    return JobCompletion(ended.running.lease, ended.output, outcome.reason, ended.running.unreported_since())
