"""The leases of this process: renewed, their stop requests read, their progress told."""

import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, leases, lifecycle, telemetry
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.leases import Progress
from jobs.settings import JobSettings
from jobs.states import StopReason
from jobs.transitions import Lease
from worker.engine.deltas import Piece
from worker.engine.stream import Ended
from worker.loop import Loop

_PROGRESS_SECONDS: Final = 1.0
# Leases that are due so soon are renewed with those due now. Not all: while a locked one stays due, each
# round would write every row.
_TOGETHER_SECONDS: Final = 2.0
# An engine's gauges count a request that has generated for so long: they are refreshed every 0.1 s.
_VISIBLE_SECONDS: Final = 1.0
# A stream that is silent for longer may have lost its request.
_HEARD_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The job should end now; reason None: its lease is lost."""

    reason: StopReason | None


@dataclass(eq=False)
class HeldLease:
    """A running job, as its slot and the keeper share it.

    Attributes:
        lease: the fence.
        valid_until: monotonic time at which the lease ends unless it is renewed.
        inbox: what its slot waits for: the stream's events and requests to stop.
        num_tokens: generated so far; written by the slot.
        first_token_at: monotonic time of the first of them.
        generating_since: monotonic time of the first token of the request that runs now; None: no request of
            the job is certain to be in the engine. Written by the slot.
        heard_at: monotonic time of the latest token.
        told_tokens: of them, told to callers; written by the keeper.
        told_at: monotonic time of that.
        snapshot: the answer a few seconds ago; written by the slot.
        saved: the last snapshot that is a checkpoint; written by the keeper.
        stop_reason: the last one that was handed on.
        is_ending: its slot records the end, so that a lease that is gone is no loss.
    """

    lease: Lease
    valid_until: float
    inbox: "queue.SimpleQueue[Piece | Ended | StopAsked]" = field(default_factory=queue.SimpleQueue)
    num_tokens: int = 0
    first_token_at: float | None = None
    generating_since: float | None = None
    heard_at: float = 0.0
    told_tokens: int = 0
    told_at: float = 0.0
    snapshot: Output | None = None
    saved: Output | None = None
    stop_reason: StopReason | None = None
    is_ending: bool = False

    def take_over(self, num_tokens: int) -> None:
        """So many tokens of an earlier run are known to callers already."""
        self.num_tokens = self.told_tokens = num_tokens

    def hear(self, now: float, *, num_tokens: int) -> None:
        """Note that the request brought tokens; so many have come in all."""
        if self.generating_since is None:
            self.generating_since = now
        self.first_token_at = self.first_token_at or now
        self.heard_at = now
        self.num_tokens = num_tokens

    def is_generating(self, now: float) -> bool:
        """Tell whether the engine has generated for the job for a while, and still does."""
        since = self.generating_since
        return since is not None and now - since >= _VISIBLE_SECONDS and now - self.heard_at <= _HEARD_SECONDS


class LeaseKeeper:
    """Keeps every held lease alive as long as the database can be reached.

    When it cannot, nothing happens here: each slot ends its stream before its lease does.
    """

    def __init__(self, sessions: sessionmaker[Session], settings: JobSettings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._held: set[HeldLease] = set()
        self._lock = threading.Lock()
        self.loop = Loop("leases", self.run_once, interval=settings.stop_poll_seconds)

    def hold(self, held: HeldLease) -> None:
        """The lease is kept from now on."""
        with self._lock:
            self._held.add(held)

    def drop(self, held: HeldLease) -> None:
        """The lease is left alone."""
        with self._lock:
            self._held.discard(held)

    def held(self) -> list[HeldLease]:
        """Every lease that is kept now."""
        with self._lock:
            return list(self._held)

    def stop_all(self, reason: StopReason) -> None:
        """Every running job is asked to end."""
        for held in self.held():
            held.inbox.put(StopAsked(reason))

    def run_once(self) -> None:
        """Renew what is due, hand on stop requests, tell progress and save checkpoints.

        In this order, and none waits for a row that somebody else has locked: that is for the next round.
        """
        held = self.held()
        if not held:
            return
        if any(self._is_due(each) for each in held):
            self._renew([each for each in held if self._is_due(each, ahead=_TOGETHER_SECONDS)])
        self._hand_on_stops(held)
        self._tell_progress(held)
        for each in held:
            self._save(each)

    def tell_first_token(self, session: Session, held: HeldLease) -> None:
        """Callers will know when the first token came, also of a job that ended before they could be told."""
        if held.num_tokens and not held.told_tokens:
            told = self._progress_of(held, held.num_tokens)
            lifecycle.report_progress(
                session,
                told.lease,
                completion_tokens=told.completion_tokens,
                since_first_token=told.since_first_token,
            )

    @staticmethod
    def _progress_of(held: HeldLease, num_tokens: int) -> Progress:
        since = time.monotonic() - (held.first_token_at or time.monotonic())
        return Progress(held.lease, num_tokens, timedelta(seconds=since))

    def _is_due(self, held: HeldLease, *, ahead: float = 0.0) -> bool:
        """Tell whether the lease is to be renewed within so many seconds."""
        left = held.valid_until - ahead - time.monotonic()
        return left <= self._settings.lease_seconds - self._settings.renew_seconds

    def _renew(self, held: Iterable[HeldLease]) -> None:
        # Read before the database renews, so that our idea of the end is never later than its own.
        valid_until = time.monotonic() + self._settings.lease_seconds
        span = timedelta(seconds=self._settings.lease_seconds)
        with transaction(self._sessions) as session:
            renewed = leases.renew(session, [each.lease for each in held], lease=span)
        for each in held:
            if each.lease.lease_id in renewed:
                each.valid_until = valid_until

    def _hand_on_stops(self, held: Iterable[HeldLease]) -> None:
        with transaction(self._sessions) as session:
            reasons = leases.read_stops(session, [each.lease for each in held])
        for each in held:
            if each.lease.lease_id not in reasons:
                self._lose(each)
            elif (reason := reasons[each.lease.lease_id]) and reason != each.stop_reason:
                each.stop_reason = reason
                each.inbox.put(StopAsked(reason))

    def _tell_progress(self, held: Iterable[HeldLease]) -> None:
        """Callers see the first token at once, the later ones about once a second."""
        now = time.monotonic()
        due = {each.lease.lease_id: (each, each.num_tokens) for each in held if _is_news(each, now)}
        if not due:
            return
        with transaction(self._sessions) as session:
            told = leases.report_all(session, [self._progress_of(*each) for each in due.values()])
        for lease_id in told:
            each, num_tokens = due[lease_id]
            each.told_tokens, each.told_at = num_tokens, now

    def _save(self, held: HeldLease) -> None:
        """Make the slot's last snapshot the job's checkpoint; one that cannot be stored holds up no other."""
        snapshot = held.snapshot
        if snapshot is None or snapshot is held.saved or held.is_ending:
            return
        try:
            with transaction(self._sessions) as session:
                is_saved = leases.checkpoint(session, held.lease, snapshot)
        except (DataError, IntegrityError, UnicodeError) as error:
            telemetry.logger().error(telemetry.LOOP_FAILED, loop="checkpoint", error=type(error).__name__)
            is_saved = True  # the next snapshot may be better
        if is_saved:
            held.saved = snapshot

    def _lose(self, held: HeldLease) -> None:
        """Its slot is told."""
        if held.is_ending:
            return
        self.drop(held)
        telemetry.logger().info(telemetry.LEASE_LOST, job_id=ids.job_id(held.lease.job_id))
        held.inbox.put(StopAsked(None))


def _is_news(held: HeldLease, now: float) -> bool:
    """Tell whether callers should hear of the job's progress now."""
    if held.num_tokens == held.told_tokens:
        return False
    return not held.told_tokens or now - held.told_at >= _PROGRESS_SECONDS
