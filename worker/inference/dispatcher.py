"""The dispatcher: one thread that ticks, and the runs that it starts on the engine loop."""

import threading
import time
from collections.abc import Callable

from jobs.scheduling.tick import Tick
from jobs.settings import Settings
from worker.engine.client import EngineModel
from worker.inference.desk import Desk
from worker.inference.leases import LeaseKeeper
from worker.inference.monitor import EngineMonitor
from worker.inference.slots import Slots
from worker.loop import Loop
from worker.metrics.runs import NO_JOBS, NO_ROOM, NOT_GIVEN, STOPPING, UNAVAILABLE, RunMetrics


class Dispatcher:
    """One ticking thread. Its runs are coroutines, however many slots the engine has.

    It ticks when a run ends, when the doorbell rings, and once a second anyway: messages may be lost and the
    broker may be down. What ends during a tick is stored by the next one. A second thread loads the prompts
    of the jobs that a tick left at the head of the queue.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        monitor: EngineMonitor,
        keeper: LeaseKeeper,
        slots: Slots,
        desk: Desk,
        metrics: RunMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without ticking.

        Args:
            settings: of this worker.
            monitor: of its engine.
            keeper: of its leases.
            slots: run what the ticks start.
            desk: where the ticks happen.
            metrics: of this worker; None: of nobody.
            clock: seconds, by which ticks are paced.
        """
        self._metrics = metrics or RunMetrics.of_nobody()
        self._settings = settings
        self._monitor = monitor
        self._keeper = keeper
        self._slots = slots
        self._desk = desk
        self._clock = clock
        self._ticking = threading.Lock()
        self.loop = Loop("dispatcher", self.run_once, interval=settings.jobs.claim_poll_seconds)
        self.prefetch_loop = Loop(
            "prefetch", slots.prefetcher.refresh, interval=settings.jobs.claim_poll_seconds
        )
        desk.wake, desk.wake_within = self.loop.wake, self.loop.wake_within

    def run_once(self) -> None:
        """Store every run that ended, and start every job that can start then, unless the worker is stopping.

        Once it returns, no earlier tick is under way.
        """
        with self._ticking:
            self.loop.answer_wakes()
            began = self._clock()
            self._tick()
            self._metrics.ticked(self._clock() - began)

    def begin_stop(self) -> None:
        """Stop claiming jobs. Returns at once."""
        self._slots.stopping.set()
        self.prefetch_loop.begin_stop()

    def stop(self, *, grace_seconds: float) -> None:
        """End all runs. Jobs that do not end within the grace go back to the queue."""
        self.begin_stop()
        self.prefetch_loop.join()
        with self._ticking:  # a tick that began before may start runs
            pass
        self._slots.stop(grace_seconds=grace_seconds)
        self.loop.begin_stop()
        self.loop.join()

    def _tick(self) -> None:
        """Tick once."""
        model = self._monitor.model
        if model is None or self._slots.stopping.is_set():
            self._desk.tick(None)
            self._metrics.idle(1, UNAVAILABLE if model is None else STOPPING)
            return
        # Read the clock before the claim, so that we never believe a lease ends later than the database does.
        valid_until = time.monotonic() + self._settings.jobs.lease_seconds
        result = self._desk.tick(
            self._slots.policy(),
            start=lambda result: self._start(result, model, valid_until=valid_until),
        )
        self._note_idle(result, model)

    def _note_idle(self, result: Tick, model: EngineModel) -> None:
        """Keep how many slots stay without a job, and why."""
        if result.free_slots:
            self._metrics.idle(result.free_slots, NO_ROOM if result.left else NO_JOBS)
        else:
            num_idle = model.capacity.max_batch_size - len(self._keeper.runs())
            self._metrics.idle(max(0, num_idle), NOT_GIVEN)

    def _start(self, result: Tick, model: EngineModel, *, valid_until: float) -> None:
        """Start the runs of what was claimed, and prefetch what may start next."""
        if result.asked_for_room:
            self._keeper.loop.wake()  # it delivers the stop requests
        if result.claims:
            self._slots.start(result.claims, model, valid_until=valid_until)
        if result.missed and result.free_slots:
            self.loop.wake()
        if result.left is not None:
            self._slots.prefetcher.expect(result.left)
            self.prefetch_loop.wake()
