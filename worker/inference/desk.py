"""The desk: runs hand in how they ended; one tick stores them together and starts what fits next."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta

from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.checkpoints import Output
from jobs.completing import JobCompletion
from jobs.database import transaction
from jobs.scheduling import tick
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.tick import Tick
from jobs.settings import Settings
from jobs.starting import StartRefusedError
from jobs.states import JobState
from worker.inference.leases import RunningJob
from worker.inference.lone_ends import EndedRun, LoneEnds, StoredEnd
from worker.inference.outcome import Finished, RunEnd
from worker.inference.refused_starts import RefusedStarts


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
        wake: Callable[[], object] = lambda: None,
        wake_within: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Set up without ended runs.

        Args:
            settings: of this process.
            sessions: of its database.
            stopping: set when the process is shutting down.
            wake: called when there is work.
            wake_within: called in a tick when there will be work in so many seconds.
        """
        self._settings = settings
        self._sessions = sessions
        self.wake = wake
        self.wake_within = wake_within
        self._waiting: list[EndedRun] = []
        self._apart = LoneEnds(settings, sessions, stopping=stopping)
        self._refused = RefusedStarts(settings, sessions)
        self._lock = threading.Lock()

    def hand_in(self, running: RunningJob, end: RunEnd, output: Output) -> "Future[StoredEnd]":
        """Leave the end of a run for the next tick, which is soon.

        Args:
            running: the job.
            end: how its run ended.
            output: what it generated.
        """
        ended = EndedRun(running, end, output, time.monotonic(), Future())
        ended.stored.set_running_or_notify_cancel()  # a run that is cancelled must not fail the tick
        is_shared = isinstance(end.outcome, Finished) and not output.has_files
        if not is_shared:
            self._apart.add([ended])
        with self._lock:
            if is_shared:
                self._waiting.append(ended)
        self.wake()
        return ended.stored

    def tick(
        self,
        policy: ClaimPolicy | None,
        *,
        start: Callable[[Tick], object] = lambda _: None,
    ) -> Tick:
        """Store what was handed in, and start every job that fits then.

        An end that cannot be stored now stays for the next tick. Fails only if claims do and nothing else was
        to be done with them.

        Args:
            policy: of the claims; None: start nothing.
            start: called with what was claimed, once that is committed, and before ends that may have to wait
                are stored.
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
            regrouped = self._apart.store(wake=self.wake, wake_within=self.wake_within)
            with self._lock:
                self._waiting[:0] = regrouped

    def _store_together(self, together: Sequence[EndedRun], policy: ClaimPolicy | None) -> Tick:
        try:
            with transaction(self._sessions) as session:
                self._refused.leave_out(session)
                result = tick.tick(
                    session,
                    self._settings.engine.name,
                    policy,
                    ended=[_completion(each) for each in together],
                )
        except BaseException as error:
            self._apart.add(together)
            if isinstance(error, StartRefusedError) and self._refused.set_aside(error.claims):
                self.wake()
            elif not together:
                raise
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="tick", error=type(error).__name__)
            return Tick()
        self._tell(together, result)
        return result

    def _tell(self, ended: Sequence[EndedRun], result: Tick) -> None:
        """Tell runs that their ends are stored, and leave the others for later."""
        wants = result.completed.has_deliveries
        for each in ended:
            if each.running.lease.job_id in result.completed.job_ids:
                each.stored.set_result(StoredEnd(JobState.COMPLETED, may_have_deliveries=wants))
            else:
                self._apart.add([each])


def _completion(ended: EndedRun) -> JobCompletion:
    running, since_first_token = ended.running, ended.running.unreported_since()
    since_answer = timedelta(seconds=time.monotonic() - ended.handed_in_at)
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
