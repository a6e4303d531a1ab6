"""The leases that this process holds: renewal, stop requests, progress and checkpoints."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, leases, telemetry
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.leases import JobProgress
from jobs.settings import JobSettings
from jobs.states import StopReason
from worker.inference.run import Run, StopAsked
from worker.loop import Loop

_PROGRESS_SECONDS: Final = 1.0
# A job that generates for less is likely to end in a moment, which would find its row locked by the report.
_FIRST_REPORT_SECONDS: Final = 0.25
# Leases due this soon are renewed together with those due now. Not all leases: while a locked one stays due,
# each round would write every row.
_TOGETHER_SECONDS: Final = 2.0
# Snapshots saved by one statement, which keeps their rows locked for as long as it takes, and what they hold.
_SAVED_TOGETHER: Final = 64
_BYTES_TOGETHER: Final = 1_000_000


class LeaseKeeper:
    """The keeper of this process's leases; it renews them while the database is reachable.

    When the database is unreachable it does nothing: each run ends its stream before its lease runs out.

    Attributes:
        on_read: called once it is reported that a job has read what others wait for.
        may_renew: returns False while this worker could not store how a job ends.
    """

    def __init__(self, sessions: sessionmaker[Session], settings: JobSettings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._runs: set[Run] = set()
        self._lock = threading.Lock()
        self.on_read: Callable[[], object] = lambda: None
        self.may_renew: Callable[[], bool] = lambda: True
        self.loop = Loop("leases", self.run_once, interval=settings.stop_poll_seconds)

    def hold(self, run: Run) -> None:
        """Keep renewing this lease from now on."""
        run.on_first_token = self.loop.wake if run.claim.is_awaited else None
        with self._lock:
            self._runs.add(run)

    def drop(self, run: Run) -> None:
        """Stop renewing this lease."""
        with self._lock:
            self._runs.discard(run)

    def runs(self) -> list[Run]:
        """Return the runs whose leases are kept now."""
        with self._lock:
            return list(self._runs)

    def stop_all(self, reason: StopReason) -> None:
        """Ask every running job to end."""
        for run in self.runs():
            run.inbox.put(StopAsked(reason))

    def run_once(self) -> None:
        """Renew due leases, deliver stop requests, report progress and save checkpoints.

        In this order. No step waits for a row locked by another transaction; the next round retries it.
        """
        runs = self.runs()
        if not runs:
            return
        if any(self._is_due(each) for each in runs) and self.may_renew():
            self._renew([each for each in runs if self._is_due(each, ahead=_TOGETHER_SECONDS)])
        self._deliver_stops(runs)
        self._report_progress(runs)
        due = [(each, each.snapshot) for each in runs if each.snapshot is not None and _must_save(each)]
        for some in _in_sets(due):
            self._save_all(some)

    @staticmethod
    def _progress_of(run: Run, num_tokens: int) -> JobProgress:
        return JobProgress(run.lease, num_tokens, run.since_first_token())

    def _is_due(self, run: Run, *, ahead: float = 0.0) -> bool:
        """Return True if the lease must be renewed within `ahead` seconds."""
        left = run.valid_until - ahead - time.monotonic()
        return left <= self._settings.lease_seconds - self._settings.renew_seconds

    def _renew(self, runs: Iterable[Run]) -> None:
        # Read the clock before renewing, so that we never believe a lease ends later than the database does.
        valid_until = time.monotonic() + self._settings.lease_seconds
        span = timedelta(seconds=self._settings.lease_seconds)
        with transaction(self._sessions) as session:
            renewed = leases.renew(session, [each.lease for each in runs], lease=span)
        for each in runs:
            if each.lease.lease_id in renewed:
                each.valid_until = valid_until

    def _deliver_stops(self, runs: Iterable[Run]) -> None:
        with transaction(self._sessions) as session:
            reasons = leases.read_stops(session, [each.lease for each in runs])
        for each in runs:
            if each.lease.lease_id not in reasons:
                self._lose(each)
            elif (reason := reasons[each.lease.lease_id]) and reason != each.stop_reason:
                each.stop_reason = reason
                each.inbox.put(StopAsked(reason))

    def _report_progress(self, runs: Iterable[Run]) -> None:
        """Report the first token soon, at once if others wait for it, and later ones once a second."""
        now = time.monotonic()
        due = {each.lease.lease_id: (each, each.num_tokens) for each in runs if _must_report(each, now)}
        if not due:
            return
        with transaction(self._sessions) as session:
            reported = leases.report_all(session, [self._progress_of(*each) for each in due.values()])
        for lease_id, is_followed in reported.items():
            each, num_tokens = due[lease_id]
            each.reported_tokens, each.reported_at = num_tokens, now
            if each.on_first_token is not None:
                each.on_first_token = None
                if is_followed:
                    self.on_read()

    def _save_all(self, due: Sequence[tuple[Run, Output]]) -> None:
        """Save these snapshots as the jobs' checkpoints. One that cannot be stored is skipped."""
        try:
            with transaction(self._sessions) as session:
                leases_held = [each.lease for each, _ in due]
                saved = leases.checkpoint_all(session, leases_held, [snapshot for _, snapshot in due])
        except (DataError, IntegrityError, UnicodeError) as error:
            if len(due) > 1:
                for one in due:
                    self._save_all([one])
                return
            telemetry.logger().error(telemetry.LOOP_FAILED, loop="checkpoint", error=type(error).__name__)
            saved = {each.lease.lease_id for each, _ in due}  # the next snapshot may be better
        for each, snapshot in due:
            if each.lease.lease_id in saved:
                each.saved = snapshot

    def _lose(self, run: Run) -> None:
        """Drop the lease and stop its run."""
        if run.is_ending:
            return
        self.drop(run)
        telemetry.logger().info(telemetry.LEASE_LOST, job_id=ids.job_id(run.lease.job_id))
        run.inbox.put(StopAsked(None))


def _in_sets(due: Sequence[tuple[Run, Output]]) -> Iterator[list[tuple[Run, Output]]]:
    """Yield the snapshots in sets that one statement can save."""
    some: list[tuple[Run, Output]] = []
    num_bytes = 0
    for run, snapshot in due:
        some.append((run, snapshot))
        num_bytes += len(snapshot.text) + len(snapshot.reasoning) + 4 * len(snapshot.ids)
        num_bytes += len(snapshot.log_probs or b"")
        if len(some) == _SAVED_TOGETHER or num_bytes >= _BYTES_TOGETHER:
            yield some
            some, num_bytes = [], 0
    if some:
        yield some


def _must_save(run: Run) -> bool:
    """Return True if the run has left a snapshot that is no checkpoint yet."""
    return run.snapshot is not run.saved and not run.is_ending


def _must_report(run: Run, now: float) -> bool:
    """Return True if the job's progress is due to be reported to callers."""
    if run.num_tokens == run.reported_tokens:
        return False
    if run.reported_tokens or run.first_token_at is None:
        return now - run.reported_at >= _PROGRESS_SECONDS
    return run.on_first_token is not None or now - run.first_token_at >= _FIRST_REPORT_SECONDS
