"""The desk: runs hand in how they ended; one tick stores them together and starts what fits next."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.checkpoints import Output
from jobs.completing import JobCompletion
from jobs.database import direct, transaction
from jobs.scheduling import ticks
from jobs.scheduling.claims import Claim, ClaimResult
from jobs.scheduling.head_starts import FilledSlot, HeadStart
from jobs.scheduling.previews import Preview
from jobs.scheduling.sizing import ClaimPolicy
from jobs.settings import Settings
from jobs.starting import StartRefusedError
from jobs.states import JobState
from jobs.transitions import Lease
from worker.inference.leases import RunningJob
from worker.inference.lone_ends import EndedRun, LoneEnds, StoredEnd
from worker.inference.outcome import Finished, RunEnd
from worker.inference.refused_starts import RefusedStarts
from worker.inference.sending.head_starts import HeadStarts


class Desk:
    """The ended runs of one engine. Any thread hands in; one thread ticks.

    Complete answers share a transaction, with each other and with the claims of the tick. Everything else has
    one of its own: few answers have files of tensors, and an answer that the shared one did not store is
    tried alone, so that whatever is wrong with one run, the others do not notice. Only if that finds the tree
    held, the answer shares the next transaction, too.
    A job that the database refuses to start is set aside, and the next tick starts the others.
    """

    def __init__(
        self,
        settings: Settings,
        sessions: sessionmaker[Session],
        *,
        stopping: threading.Event,
        head_starts: HeadStarts | None = None,
        wake: Callable[[], object] = lambda: None,
        wake_within: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Set up without ended runs.

        Args:
            settings: of this process.
            sessions: of its database.
            stopping: set when the process is shutting down.
            head_starts: of this engine; None: there are none.
            wake: called when there is work.
            wake_within: called in a tick when there will be work in so many seconds.
        """
        self._settings = settings
        self._sessions = sessions
        self.head_starts = head_starts
        self.wake = wake
        self.wake_within = wake_within
        self._waiting: list[EndedRun] = []
        self._apart = LoneEnds(settings, sessions, stopping=stopping)
        self._refused = RefusedStarts(settings, sessions)
        self._lock = threading.Lock()
        self._num_handed_in = self._awaited = 0
        self._came = threading.Event()

    @property
    def num_waiting(self) -> int:
        """Number of whole answers that the next tick stores together."""
        return len(self._waiting)

    def wait_for(self, num_ends: int, *, seconds: float) -> bool:
        """Wait until so many more runs are handed in. Returns True if any was."""
        with self._lock:
            num_before = self._num_handed_in
            self._awaited = num_before + num_ends
            self._came.clear()
        self._came.wait(seconds)
        return self._num_handed_in > num_before

    def hand_in(self, running: RunningJob, end: RunEnd, output: Output) -> "Future[StoredEnd]":
        """Leave the end of a run for the next tick, which is soon."""
        ended = EndedRun(running, end, output, time.monotonic(), Future())
        ended.stored.set_running_or_notify_cancel()  # a run that is cancelled must not fail the tick
        is_shared = isinstance(end.outcome, Finished) and not output.has_files
        if not is_shared:
            self._add_apart([ended])
        with self._lock:
            if is_shared:
                self._waiting.append(ended)
            self._num_handed_in += 1
            if self._num_handed_in == self._awaited:
                self._came.set()
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
            preview: as in `claims.start_jobs`; used only if a run has ended.
            start: called with what was claimed, before ends that may have to wait are stored.
        """
        with self._lock:
            together, self._waiting = self._waiting, []
        result, outlook = ClaimResult(), None
        try:
            if together or policy is not None:
                result = self._store_together(together, policy, preview if together else None)
            start(result)
            outlook = result.outlook
            if result.claims:
                self._refused.fail_all()
            return result
        finally:
            if self.head_starts is not None:
                self.head_starts.foresee(outlook)
            regrouped = self._apart.store(wake=self.wake, wake_within=self.wake_within)
            with self._lock:
                self._waiting[:0] = regrouped

    def renew_plans(self) -> None:
        """Let Postgres plan the statements of ticks anew, if that is due, so that no tick waits for it."""
        try:
            with self._sessions.begin() as session:
                direct.renew_plans(session, ticks.STATEMENTS)
        except SQLAlchemyError as error:  # then the next tick plans them
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="plans", error=type(error).__name__)

    def _store_together(
        self, together: Sequence[EndedRun], policy: ClaimPolicy | None, preview: Preview | None
    ) -> ClaimResult:
        ended = [
            _completion(each, each.end.outcome) for each in together if isinstance(each.end.outcome, Finished)
        ]
        begun, under_way = self._begin_tick(together)
        try:
            with transaction(self._sessions) as session:
                self._refused.leave_out(session)
                engine = self._settings.engine
                result = ticks.tick(
                    session,
                    engine.name,
                    policy,
                    ended=ended,
                    preview=preview,
                    model=engine.model,
                    begun=begun,
                    under_way=under_way,
                )
        except BaseException as error:
            self._add_apart(together)
            if isinstance(error, StartRefusedError) and self._refused.set_aside(error.starts):
                self.wake()
            elif not together:
                raise
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="tick", error=type(error).__name__)
            return ClaimResult()
        self._settle(together, result.claimed.claims)
        for each in together:
            if each.running.lease.job_id in result.completed.job_ids:
                wants = result.completed.has_deliveries
                each.stored.set_result(StoredEnd(JobState.COMPLETED, may_have_deliveries=wants))
        self._apart.add(each for each in together if not each.stored.done())
        return result.claimed

    def forget_head_start(self, ended: Lease) -> None:
        """Stop what was sent for a run whose end is not handed in, and what is in its slot."""
        if self.head_starts is not None:
            self.head_starts.drop(ended)

    def _begin_tick(self, ended: Sequence[EndedRun]) -> tuple[Sequence[HeadStart], Sequence[FilledSlot]]:
        """Return what is in the slots of these runs, and of others that have ended."""
        if self.head_starts is None:
            return (), ()
        return self.head_starts.begin_tick([each.running.lease for each in ended])

    def _add_apart(self, ended: Sequence[EndedRun]) -> None:
        """Leave these to be stored alone, each with the place of what is in its slot, which is stopped."""
        if self.head_starts is None:
            self._apart.add(ended)
            return
        for each in ended:
            left = self.head_starts.leave(each.running.lease, each.stored)
            self._apart.add([replace(each, left=left)])

    def _settle(self, ended: Sequence[EndedRun], claims: Sequence[Claim]) -> None:
        """Tell what became of the head starts in the slots of these runs."""
        if self.head_starts is not None:
            self.head_starts.settle([each.running.lease for each in ended], claims)


def _completion(ended: EndedRun, outcome: Finished) -> JobCompletion:
    running = ended.running
    return JobCompletion(
        running.lease,
        ended.output,
        outcome.reason,
        running.unreported_since(),
        timedelta(seconds=time.monotonic() - ended.handed_in_at),
        running.summary_id,
        engine_is_done=ended.end.engine_is_done,
    )
