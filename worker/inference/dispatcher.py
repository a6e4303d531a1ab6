"""The dispatcher: claims jobs whenever one can start, and runs each in a slot."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs import lifecycle, telemetry
from jobs.database import transaction
from jobs.engines import reservations
from jobs.scheduling import claims
from jobs.scheduling.claims import Claim, ClaimResult, FreedSlot, Preview
from jobs.settings import Settings
from jobs.states import StopReason
from worker.engine.client import EngineModel
from worker.inference.execute import Runner
from worker.inference.leases import LeaseKeeper, RunningJob
from worker.inference.monitor import EngineMonitor
from worker.inference.refill import PendingSends, SlotRefiller
from worker.loop import Loop

# Threads are made only when a job needs one; an engine has far fewer slots.
_MAX_SLOTS: Final = 256


class Dispatcher:
    """One claiming thread and as many slot threads as the engine has slots.

    It claims when the doorbell rings, when a slot becomes free, and once a second anyway: messages may be
    lost and the broker may be down. The thread whose request has ended claims the next job itself, from the
    candidates that a third thread has prefetched.
    """

    def __init__(
        self,
        settings: Settings,
        sessions: sessionmaker[Session],
        *,
        monitor: EngineMonitor,
        keeper: LeaseKeeper,
        runner: Runner,
        pending_sends: PendingSends,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._monitor = monitor
        self._keeper = keeper
        self._runner = runner
        self._pending_sends = pending_sends
        self._refiller = SlotRefiller(self._fill, pending_sends)
        self._slots = ThreadPoolExecutor(max_workers=_MAX_SLOTS, thread_name_prefix="slot")
        self._num_running = 0
        self._given_back: set[RunningJob] = set()
        self._changed = threading.Condition()
        self.loop = Loop("dispatcher", self.run_once, interval=settings.jobs.claim_poll_seconds)
        self.prefetch_loop = Loop("prefetch", self._prefetch, interval=settings.jobs.claim_poll_seconds)

    def run_once(self) -> None:
        """Start every job that can start now, unless the worker is stopping."""
        if not self._runner.stopping.is_set():
            self._claim()

    def begin_stop(self) -> None:
        """Stop claiming jobs. Returns at once."""
        self._runner.stopping.set()
        self.loop.begin_stop()
        self.prefetch_loop.begin_stop()

    def stop(self, *, grace_seconds: float) -> None:
        """Stop all slots. Jobs that do not end within the grace go back to the queue."""
        self.begin_stop()
        self.loop.join()
        self.prefetch_loop.join()
        with self._changed:
            self._changed.wait_for(lambda: self._num_running == 0, grace_seconds)
        self._keeper.stop_all(StopReason.SHUTDOWN)
        self._slots.shutdown(wait=True)

    def _prefetch(self) -> None:
        if self._monitor.model is not None:
            self._runner.prefetcher.refresh()

    def _claim(self, ended: Sequence[FreedSlot] = (), *, preview: Preview | None = None) -> ClaimResult:
        """Start every job that can start now, including in the slots of `ended` requests."""
        model = self._monitor.model
        if model is None:
            return ClaimResult()
        # Read the clock before the claim, so that we never believe a lease ends later than the database does.
        valid_until = time.monotonic() + self._settings.jobs.lease_seconds
        with transaction(self._sessions) as session:
            result = claims.claim_all(
                session, self._settings.engine.name, self._runner.policy(), ended=ended, preview=preview
            )
        if result.asked_for_room:
            self._keeper.loop.wake()  # it delivers the stop requests
        for claim in result.claims:
            self._start(claim, RunningJob(claim.lease, valid_until), model)
        self._runner.prefetcher.forget(claim.job.id for claim in result.claims)
        if result.claims:
            self.prefetch_loop.wake()
        return result

    def _fill(self, ended: Sequence[FreedSlot]) -> bool:
        """Start jobs in the slots of ended requests. Returns True if the engine then has no free slot.

        The results of the ended requests are recorded later.
        """
        if self._runner.stopping.is_set():
            return False
        try:
            result = self._claim(ended, preview=self._runner.prefetcher.candidates())
        except Exception as error:  # noqa: BLE001  # recording the ends deletes the reservations, and the loop claims
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="refill", error=type(error).__name__)
            return False
        return bool(result.claims) and result.free_slots == 0

    def _start(self, claim: Claim, running: RunningJob, model: EngineModel) -> None:
        self._keeper.hold(running)
        self._pending_sends.add()
        with self._changed:
            try:
                self._slots.submit(self._occupy, claim, running, model)
            except RuntimeError:  # no thread could start, or the pool is shut down
                telemetry.logger().exception(telemetry.LOOP_FAILED, loop="slot-start")
                self._given_back.add(running)  # the pool may still run it
            else:
                self._num_running += 1
                return
        self._give_back(claim, running)

    def _give_back(self, claim: Claim, running: RunningJob) -> None:
        """Release a job that was not sent. If that fails, it is requeued when its lease runs out."""
        self._keeper.drop(running)
        self._pending_sends.remove()
        with suppress(SQLAlchemyError), transaction(self._sessions) as session:
            lifecycle.release(session, claim.lease)
            reservations.close(session, claim.lease.lease_id)

    def _occupy(self, claim: Claim, running: RunningJob, model: EngineModel) -> None:
        with self._changed:
            if running in self._given_back:
                self._given_back.discard(running)
                return
        slot = _Slot(claim, self._refiller, self._pending_sends)
        try:
            self._runner.run(claim, running, model, sent=slot.sent, refill_slot=slot.refill)
        except Exception:  # noqa: BLE001  # the thread's entry point
            # The lease runs out and the job is rescued.
            telemetry.logger().exception(telemetry.LOOP_FAILED, loop="slot")
        finally:
            slot.sent()
            self._keeper.drop(running)
            with self._changed:
                self._num_running -= 1
                self._changed.notify_all()
            if not slot.is_taken:
                self.loop.wake()


class _Slot:
    """A slot while one job occupies it.

    Attributes:
        is_taken: the slot is refilled, or another thread is refilling it.
    """

    def __init__(self, claim: Claim, refiller: SlotRefiller, pending_sends: PendingSends) -> None:
        self._claim = claim
        self._refiller = refiller
        self._pending_sends = pending_sends
        self._was_sent = False
        self.is_taken = False

    def sent(self) -> None:
        """Mark the job's request as sent, or as one that never will be. Later calls do nothing."""
        if not self._was_sent:
            self._was_sent = True
            self._pending_sends.remove()

    def refill(self, generated_tokens: int) -> None:
        """Refill the slot of a job with so many tokens, for which the engine no longer holds anything."""
        self.is_taken = self._refiller.refill(FreedSlot(self._claim.lease.lease_id, generated_tokens))
