"""Keeps the engine full: claims a job whenever one may start, and hands it to a slot."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs import claims, telemetry
from jobs.claims import Claim
from jobs.database import transaction
from jobs.lifecycle import Lease
from jobs.settings import Settings
from jobs.states import StopReason
from worker.engine import EngineModel
from worker.execute import Runner
from worker.lease import HeldLease, LeaseKeeper
from worker.loops import Loop
from worker.monitor import EngineMonitor

# Threads are made only when a job needs one; an engine has far fewer slots.
_MAX_SLOTS: Final = 256


class Dispatcher:
    """One claiming thread and as many slot threads as the engine has slots.

    It looks when the doorbell rings, when a slot becomes free, and once a second anyway: messages may be lost
    and the broker may be down. The thread whose request has ended claims the next job itself, from what a
    third one has read ahead.
    """

    def __init__(
        self,
        settings: Settings,
        sessions: sessionmaker[Session],
        *,
        monitor: EngineMonitor,
        keeper: LeaseKeeper,
        runner: Runner,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._monitor = monitor
        self._keeper = keeper
        self._runner = runner
        self._slots = ThreadPoolExecutor(max_workers=_MAX_SLOTS, thread_name_prefix="slot")
        self._num_running = 0
        self._changed = threading.Condition()
        self.loop = Loop("dispatcher", self.run_once, interval=settings.jobs.claim_poll_seconds)
        self.ahead_loop = Loop("lookahead", self._look_ahead, interval=settings.jobs.claim_poll_seconds)

    def run_once(self) -> None:
        """Every job that may start now has started."""
        while not self._runner.stopping.is_set() and self._claim_one():
            pass

    def begin_stop(self) -> None:
        """No job is claimed any more; returns at once."""
        self._runner.stopping.set()
        self.loop.begin_stop()
        self.ahead_loop.begin_stop()

    def stop(self, *, grace_seconds: float) -> None:
        """No job runs here: those that did not end within the grace are back in the queue."""
        self.begin_stop()
        self.loop.join()
        self.ahead_loop.join()
        with self._changed:
            self._changed.wait_for(lambda: self._num_running == 0, grace_seconds)
        self._keeper.stop_all(StopReason.SHUTDOWN)
        self._slots.shutdown(wait=True)

    def _look_ahead(self) -> None:
        if self._monitor.model is not None:
            self._runner.ahead.look()

    def _claim_one(self, ended: claims.Ended | None = None) -> Claim | None:
        """One more job has started, perhaps in the place of one whose request is over; None: none may."""
        model = self._monitor.model
        if model is None:
            return None
        # Read before the claim: our idea of the lease's end is never later than the database's.
        valid_until = time.monotonic() + self._settings.jobs.lease_seconds
        with transaction(self._sessions) as session:
            found = claims.claim(
                session,
                self._settings.engine.name,
                self._runner.terms,
                ended=ended,
                foreseen=self._runner.ahead.candidates() if ended is not None else None,
            )
        if isinstance(found, claims.MakingRoom):
            self._keeper.loop.wake()  # it hands the requests on
        if not isinstance(found, Claim):
            return None
        self._start(found, HeldLease(found.lease, valid_until), model)
        self._runner.ahead.forget(found.lease.job_id)
        self.ahead_loop.wake()
        return found

    def _refill(self, ended: Lease, produced: int) -> bool:
        """Whether the slot is taken again; the job's result is not even written down yet."""
        if self._runner.stopping.is_set():
            return False
        try:
            found = self._claim_one(claims.Ended(ended.lease_id, produced))
        except SQLAlchemyError as error:  # its record closes the booking, and the loop claims
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="refill", error=type(error).__name__)
            return False
        return found is not None and found.free_slots == 0

    def _start(self, claim: Claim, held: HeldLease, model: EngineModel) -> None:
        self._keeper.hold(held)
        with self._changed:
            self._num_running += 1
        self._slots.submit(self._occupy, claim, held, model)

    def _occupy(self, claim: Claim, held: HeldLease, model: EngineModel) -> None:
        taken: list[bool] = []
        try:
            self._runner.run(
                claim, held, model, free=lambda produced: taken.append(self._refill(claim.lease, produced))
            )
        except Exception:  # noqa: BLE001  # the thread's entry point
            # The lease ends by itself and the job is rescued.
            telemetry.logger().exception(telemetry.LOOP_FAILED, loop="slot")
        finally:
            self._keeper.drop(held)
            with self._changed:
                self._num_running -= 1
                self._changed.notify_all()
            if not any(taken):
                self.loop.wake()
