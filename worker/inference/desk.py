"""The desk: runs hand in how they ended; one tick stores them together and starts what fits next."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.checkpoints import Output
from jobs.completing import JobCompletion
from jobs.database import transaction
from jobs.scheduling import claims, engine_load, ticks
from jobs.scheduling.claims import ClaimResult
from jobs.scheduling.head_starts import NOTHING_BEGUN, Begun
from jobs.scheduling.previews import Preview
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.starts import Claim
from jobs.scheduling.ticks import Expected, TickResult
from jobs.settings import Settings
from jobs.starting import StartRefusedError
from jobs.states import JobState
from jobs.transitions import Lease
from worker.inference.leases import RunningJob
from worker.inference.lone_ends import NOT_STORED, EndedRun, LoneEnds, StoredEnd
from worker.inference.outcome import Finished, RunEnd
from worker.inference.refused_starts import RefusedStarts
from worker.inference.sending.early_run import EarlyRun
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

    def hand_in(
        self, running: RunningJob, end: RunEnd, output: Output, *, early: EarlyRun | None = None
    ) -> "Future[StoredEnd]":
        """Leave the end of a run for the next tick, which is soon.

        Args:
            running: the job.
            end: how its run ended.
            output: what it generated.
            early: the run, if it began before its claim; until then only whole answers are handed in.
        """
        ended = EndedRun(running, end, output, time.monotonic(), Future(), early=early)
        ended.stored.set_running_or_notify_cancel()  # a run that is cancelled must not fail the tick
        is_shared = isinstance(end.outcome, Finished) and not output.has_files
        if not is_shared:
            self._add_apart([ended])
        with self._lock:
            if is_shared:
                self._waiting.append(ended)
        self.wake()
        return ended.stored

    def tick(
        self,
        policy: ClaimPolicy | None,
        preview: Preview | None = None,
        *,
        expected: Expected | None = None,
        prepare: Callable[[Sequence[Claim]], object] = lambda _: None,
        start: Callable[[ClaimResult], object] = lambda _: None,
    ) -> ClaimResult:
        """Store what was handed in, and start every job that fits then.

        An end that cannot be stored now stays for the next tick. Fails only if claims do and nothing else was
        to be done with them.

        Args:
            policy: of the claims; None: start nothing.
            preview: as in `claims.start_jobs`; used only if a run has ended.
            expected: of the engine, as in `ticks.tick`.
            prepare: called with what is about to be claimed, just before the commit; must be quick.
            start: called with what was claimed, before ends that may have to wait are stored.
        """
        together = self._take_waiting()
        result, outlook = ClaimResult(), None
        try:
            if together or policy is not None:
                result = self._store_together(
                    together, policy, preview if together else None, expected, prepare
                )
            start(result)
            outlook = result.outlook
            if result.claims:
                self._refused.fail_all()
            return result
        finally:
            if self.head_starts is not None:
                self.head_starts.foresee(outlook)
            regrouped = self._apart.store(wake=self.wake, wake_within=self.wake_within)
            self._put_back([*regrouped, *self._take_waiting()])

    def _take_waiting(self) -> list[EndedRun]:
        """Take the ends that wait; drop those of runs that were refused."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.is_refused:
                each.stored.set_result(NOT_STORED)
        return [each for each in waiting if not each.is_refused]

    def _put_back(self, ended: Sequence[EndedRun]) -> None:
        with self._lock:
            self._waiting[:0] = ended

    def _store_together(
        self,
        together: Sequence[EndedRun],
        policy: ClaimPolicy | None,
        preview: Preview | None,
        expected: Expected | None,
        prepare: Callable[[Sequence[Claim]], object],
    ) -> ClaimResult:
        ours = [each for each in together if not each.is_early]
        early = {each.running.lease: each for each in together if each.is_early}
        begun = self._begin_tick(ours, early)
        answered = [early.pop(each.lease) for each in begun.claimed_now if each.is_answered]
        self._put_back(list(early.values()))  # their slots are not free by what this tick stores
        try:
            with transaction(self._sessions) as session:
                self._refused.leave_out(session)
                result = ticks.tick(
                    session,
                    self._settings.engine.name,
                    policy,
                    ended=[_completion(each) for each in ours],
                    preview=preview,
                    expected=expected,
                    begun=begun,
                    early=[_completion(each) for each in answered],
                )
                prepare(result.claimed.claims)
        except BaseException as error:
            self._add_apart(ours)
            self._settle((), is_committed=False)
            self._put_back(answered)
            self._note_strays()
            if isinstance(error, StartRefusedError) and self._refused.set_aside(error.starts):
                self.wake()
            elif not together:
                raise
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="tick", error=type(error).__name__)
            return ClaimResult()
        self._settle(result.claimed.claims)
        self._tell([*ours, *answered], result)
        return result.claimed

    def _tell(self, ended: Sequence[EndedRun], result: TickResult) -> None:
        """Tell runs that their ends are stored, and leave the others for later."""
        wants = result.completed.has_deliveries
        for each in ended:
            if each.running.lease.job_id in result.completed.job_ids:
                each.running.is_stored = True
                each.stored.set_result(StoredEnd(JobState.COMPLETED, may_have_deliveries=wants))
            elif each.is_refused:
                each.stored.set_result(NOT_STORED)
            else:
                self._apart.add([each])

    def forget_head_start(self, ended: Lease) -> None:
        """Stop what was sent for a run whose end is not handed in, and what is in its slot."""
        if self.head_starts is not None:
            self.head_starts.drop(ended)

    def _begin_tick(self, ours: Sequence[EndedRun], early: Collection[Lease]) -> Begun:
        """Return what is in the engine that is not claimed."""
        if self.head_starts is None:
            return NOTHING_BEGUN
        return self.head_starts.begin_tick([each.running.lease for each in ours], early)

    def _add_apart(self, ended: Sequence[EndedRun]) -> None:
        """Leave these to be stored alone, each with the place of what is in its slot, which is stopped."""
        if self.head_starts is None:
            self._apart.add(ended)
            return
        for each in ended:
            left = self.head_starts.leave(each.running.lease, each.stored)
            self._apart.add([replace(each, left=left)])

    def _note_strays(self) -> None:
        """Book what a failed tick has sent, before anybody else starts jobs in its place."""
        strays = self.head_starts.strays() if self.head_starts is not None else ()
        if self.head_starts is None or not strays:
            return
        try:
            with transaction(self._sessions) as session:
                if engine_load.lock(session, self._settings.engine.name) is not None:
                    places = [each.head_start for each in strays]
                    claims.keep_places(session, self._settings.engine.name, places)
        except SQLAlchemyError as error:  # then the next tick does
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="strays", error=type(error).__name__)
        else:
            self.head_starts.note_places(strays)

    def _settle(self, claims: Sequence[Claim], *, is_committed: bool = True) -> None:
        """Tell what became of the head starts whose jobs the tick was to claim."""
        if self.head_starts is not None:
            self.head_starts.settle(claims, is_committed=is_committed)


def _completion(ended: EndedRun) -> JobCompletion:
    running, since_first_token = ended.running, ended.running.unreported_since()
    since_answer = running.since(ended.handed_in_at)
    assert isinstance(ended.end.outcome, Finished), "nothing else shares a transaction"  # noqa: S101
    return JobCompletion(
        running.lease,
        ended.output,
        ended.end.outcome.reason,
        since_first_token,
        since_answer if since_first_token is None else min(since_answer, since_first_token),
        running.summary_id,
        engine_is_done=ended.end.engine_is_done,
    )
