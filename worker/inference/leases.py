"""The leases that this process holds: renewal, stop requests, progress and checkpoints."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, leases, telemetry
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.leases import JobProgress
from jobs.settings import JobSettings
from jobs.states import StopReason
from jobs.transitions import Lease
from worker.engine.deltas import EngineDelta
from worker.engine.engine import StreamEnd
from worker.inference.inbox import Inbox
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
# A request that was sent this long ago has reached the engine, and its gauges count it.
_ARRIVES_WITHIN_SECONDS: Final = 1.0
# The request of a stream that has begun and is silent for longer may be lost.
_HEARD_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A request to end the job now. A `reason` of None means that its lease is lost."""

    reason: StopReason | None


@dataclass(eq=False)
class RunningJob:
    """The state of a running job that its run and the keeper share.

    Attributes:
        lease: the fence.
        valid_until: monotonic time at which the lease ends unless it is renewed.
        summary_id: the tree that the job is part of. None: of none.
        batch_id: the batch that it is a line of. None: of none.
        on_first_token: wakes the keeper, as others may wait for this job to read its prompt. None: none does,
            or it is reported.
        inbox: the events that its run waits for: the stream's and stop requests.
        num_tokens: tokens generated so far; written by the run.
        first_token_at: monotonic time of the job's first token.
        sent_at: monotonic time at which the present request was written; None if there is none. Written by
            the run.
        arrives_at_once: a request is in the engine itself a moment after it is sent. Written by the run.
        has_output: tokens of the present request have arrived. Written by the run.
        last_token_at: monotonic time of the latest token.
        reported_tokens: tokens reported to callers so far; written by the keeper.
        reported_at: monotonic time of that report.
        snapshot: the answer a few seconds ago; written by the run.
        saved: the last snapshot saved as a checkpoint; written by the keeper.
        stop_reason: the last stop reason delivered to the run.
        is_ending: the run is recording the end, so a missing lease does not mean a lost one.
    """

    lease: Lease
    valid_until: float
    summary_id: UUID | None = None
    batch_id: UUID | None = None
    on_first_token: Callable[[], object] | None = None
    inbox: Inbox[EngineDelta | StreamEnd | StopAsked] = field(default_factory=Inbox)
    num_tokens: int = 0
    first_token_at: float | None = None
    sent_at: float | None = None
    arrives_at_once: bool = False
    has_output: bool = False
    last_token_at: float = 0.0
    reported_tokens: int = 0
    reported_at: float = 0.0
    snapshot: Output | None = None
    saved: Output | None = None
    stop_reason: StopReason | None = None
    is_ending: bool = False

    def take_over(self, num_tokens: int) -> None:
        """Start from the tokens of an earlier run, which callers already know."""
        self.num_tokens = self.reported_tokens = num_tokens

    def note_tokens(self, now: float, *, num_tokens: int) -> None:
        """Record that tokens arrived; `num_tokens` is the total so far."""
        self.has_output = True
        self.first_token_at = self.first_token_at or now
        self.last_token_at = now
        self.num_tokens = num_tokens
        if self.on_first_token is not None:
            self.on_first_token()

    def since_first_token(self) -> timedelta:
        """Return how long ago the first token came; nothing if none came yet."""
        now = time.monotonic()
        return timedelta(seconds=now - (self.first_token_at or now))

    def unreported_since(self) -> timedelta | None:
        """Return how long ago the first token came. None: there was none, or its row has it."""
        return self.since_first_token() if self.num_tokens and not self.reported_tokens else None

    def begin_request(self) -> None:
        """Record that the present request is written."""
        self.sent_at = self.sent_at or time.monotonic()

    def end_request(self) -> None:
        """Record that the present request is over, or that its end is being asked for."""
        self.sent_at, self.has_output = None, False

    def is_inside(self, now: float) -> bool:
        """Return True if the engine certainly has the present request."""
        if self.has_output:
            return now - self.last_token_at <= _HEARD_SECONDS
        is_sent = self.sent_at is not None and now - self.sent_at >= _ARRIVES_WITHIN_SECONDS
        return is_sent and self.arrives_at_once


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
        self._running: set[RunningJob] = set()
        self._lock = threading.Lock()
        self.on_read: Callable[[], object] = lambda: None
        self.may_renew: Callable[[], bool] = lambda: True
        self.loop = Loop("leases", self.run_once, interval=settings.stop_poll_seconds)

    def hold(self, running: RunningJob) -> None:
        """Keep renewing this lease from now on."""
        with self._lock:
            self._running.add(running)

    def drop(self, running: RunningJob) -> None:
        """Stop renewing this lease."""
        with self._lock:
            self._running.discard(running)

    def running(self) -> list[RunningJob]:
        """Return every lease being kept now."""
        with self._lock:
            return list(self._running)

    def stop_all(self, reason: StopReason) -> None:
        """Ask every running job to end."""
        for running in self.running():
            running.inbox.put(StopAsked(reason))

    def run_once(self) -> None:
        """Renew due leases, deliver stop requests, report progress and save checkpoints.

        In this order. No step waits for a row locked by another transaction; the next round retries it.
        """
        running = self.running()
        if not running:
            return
        if any(self._is_due(each) for each in running) and self.may_renew():
            self._renew([each for each in running if self._is_due(each, ahead=_TOGETHER_SECONDS)])
        self._deliver_stops(running)
        self._report_progress(running)
        due = [(each, each.snapshot) for each in running if each.snapshot is not None and _must_save(each)]
        for some in _in_sets(due):
            self._save_all(some)

    @staticmethod
    def _progress_of(running: RunningJob, num_tokens: int) -> JobProgress:
        return JobProgress(running.lease, num_tokens, running.since_first_token())

    def _is_due(self, running: RunningJob, *, ahead: float = 0.0) -> bool:
        """Return True if the lease must be renewed within `ahead` seconds."""
        left = running.valid_until - ahead - time.monotonic()
        return left <= self._settings.lease_seconds - self._settings.renew_seconds

    def _renew(self, running: Iterable[RunningJob]) -> None:
        # Read the clock before renewing, so that we never believe a lease ends later than the database does.
        valid_until = time.monotonic() + self._settings.lease_seconds
        span = timedelta(seconds=self._settings.lease_seconds)
        with transaction(self._sessions) as session:
            renewed = leases.renew(session, [each.lease for each in running], lease=span)
        for each in running:
            if each.lease.lease_id in renewed:
                each.valid_until = valid_until

    def _deliver_stops(self, running: Iterable[RunningJob]) -> None:
        with transaction(self._sessions) as session:
            reasons = leases.read_stops(session, [each.lease for each in running])
        for each in running:
            if each.lease.lease_id not in reasons:
                self._lose(each)
            elif (reason := reasons[each.lease.lease_id]) and reason != each.stop_reason:
                each.stop_reason = reason
                each.inbox.put(StopAsked(reason))

    def _report_progress(self, running: Iterable[RunningJob]) -> None:
        """Report the first token soon, at once if others wait for it, and later ones once a second."""
        now = time.monotonic()
        due = {each.lease.lease_id: (each, each.num_tokens) for each in running if _must_report(each, now)}
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

    def _save_all(self, due: Sequence[tuple[RunningJob, Output]]) -> None:
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

    def _lose(self, running: RunningJob) -> None:
        """Drop the lease and stop its run."""
        if running.is_ending:
            return
        self.drop(running)
        telemetry.logger().info(telemetry.LEASE_LOST, job_id=ids.job_id(running.lease.job_id))
        running.inbox.put(StopAsked(None))


def _in_sets(due: Sequence[tuple[RunningJob, Output]]) -> Iterator[list[tuple[RunningJob, Output]]]:
    """Yield the snapshots in sets that one statement can save."""
    some: list[tuple[RunningJob, Output]] = []
    num_bytes = 0
    for running, snapshot in due:
        some.append((running, snapshot))
        num_bytes += len(snapshot.text) + len(snapshot.reasoning) + len(snapshot.packed_ids)
        num_bytes += len(snapshot.log_probs or b"")
        if len(some) == _SAVED_TOGETHER or num_bytes >= _BYTES_TOGETHER:
            yield some
            some, num_bytes = [], 0
    if some:
        yield some


def _must_save(running: RunningJob) -> bool:
    """Return True if the run has left a snapshot that is no checkpoint yet."""
    return running.snapshot is not running.saved and not running.is_ending


def _must_report(running: RunningJob, now: float) -> bool:
    """Return True if the job's progress is due to be reported to callers."""
    if running.num_tokens == running.reported_tokens:
        return False
    if running.reported_tokens or running.first_token_at is None:
        return now - running.reported_at >= _PROGRESS_SECONDS
    return running.on_first_token is not None or now - running.first_token_at >= _FIRST_REPORT_SECONDS
