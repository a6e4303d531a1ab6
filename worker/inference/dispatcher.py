"""The dispatcher: one thread that ticks, and the runs that it starts on the engine loop."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from jobs import telemetry
from jobs.scheduling.tick import Tick
from jobs.settings import Settings
from jobs.starting import Claim
from jobs.states import StopReason
from worker.engine import loop as engine_loop
from worker.engine.client import EngineModel
from worker.inference.desk import Desk
from worker.inference.execute import Runner
from worker.inference.leases import LeaseKeeper, RunningJob
from worker.inference.monitor import EngineMonitor
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
        runner: Runner,
        desk: Desk,
        metrics: RunMetrics | None = None,
        pass_on: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without ticking.

        Args:
            settings: of this worker.
            monitor: of its engine.
            keeper: of its leases.
            runner: runs what the ticks start.
            desk: where the ticks happen.
            metrics: of this worker; None: of nobody.
            pass_on: called after the tick of a ring: it may have been for another engine too.
            clock: seconds, by which ticks are paced.
        """
        self._metrics = metrics or RunMetrics.of_nobody()
        self._settings = settings
        self._monitor = monitor
        self._keeper = keeper
        self._runner = runner
        self._desk = desk
        self._pass_on = pass_on
        self._clock = clock
        self._rung = threading.Event()
        self._runs: set[Future[None]] = set()
        self._ticking = threading.Lock()
        self.loop = Loop("dispatcher", self.run_once, interval=settings.jobs.claim_poll_seconds)
        self.prefetch_loop = Loop(
            "prefetch", runner.prefetcher.refresh, interval=settings.jobs.claim_poll_seconds
        )
        desk.wake, desk.wake_within = self.loop.wake, self.loop.wake_within

    def ring(self) -> None:
        """Tick as soon as the present tick ends, because the doorbell rang."""
        self._rung.set()
        self.loop.wake()

    def run_once(self) -> None:
        """Store every run that ended, and start every job that can start then, unless the worker is stopping.

        Once it returns, no earlier tick is under way.
        """
        with self._ticking:
            self.loop.answer_wakes()
            was_rung = self._rung.is_set()
            self._rung.clear()
            try:
                began = self._clock()
                self._tick()
                self._metrics.ticked(self._clock() - began)
            finally:
                if was_rung:
                    self._pass_on()

    def begin_stop(self) -> None:
        """Stop claiming jobs. Returns at once."""
        self._runner.stopping.set()
        self.prefetch_loop.begin_stop()

    def stop(self, *, grace_seconds: float) -> None:
        """End all runs. Jobs that do not end within the grace go back to the queue."""
        self.begin_stop()
        self.prefetch_loop.join()
        with self._ticking:  # a tick that began before may start runs
            running = set(self._runs)
        wait(running, grace_seconds)
        self._keeper.stop_all(StopReason.SHUTDOWN)
        while running := set(self._runs):
            wait(running)
        self.loop.begin_stop()
        self.loop.join()

    def _tick(self) -> None:
        """Tick once."""
        model = self._monitor.model
        if model is None or self._runner.stopping.is_set():
            self._desk.tick(None)
            self._metrics.idle(1, UNAVAILABLE if model is None else STOPPING)
            return
        # Read the clock before the claim, so that we never believe a lease ends later than the database does.
        valid_until = time.monotonic() + self._settings.jobs.lease_seconds
        result = self._desk.tick(
            self._runner.policy(),
            start=lambda result: self._start_all(result, model, valid_until=valid_until),
        )
        self._note_idle(result, model)

    def _note_idle(self, result: Tick, model: EngineModel) -> None:
        """Keep how many slots stay without a job, and why."""
        if result.free_slots:
            self._metrics.idle(result.free_slots, NO_ROOM if result.left else NO_JOBS)
        else:
            num_idle = model.capacity.max_batch_size - len(self._keeper.running())
            self._metrics.idle(max(0, num_idle), NOT_GIVEN)

    def _start_all(self, result: Tick, model: EngineModel, *, valid_until: float) -> None:
        """Start the runs of what was claimed."""
        if result.asked_for_room:
            self._keeper.loop.wake()  # it delivers the stop requests
        self._start_in_order_of_readiness(
            [(claim, self._hold(claim, valid_until)) for claim in result.claims], model
        )
        if result.missed:
            self.loop.wake()
        if result.left is not None:
            self._runner.prefetcher.expect(result.left)
            self.prefetch_loop.wake()

    def _hold(self, claim: Claim, valid_until: float) -> RunningJob:
        """Keep renewing the lease of this claim from now on."""
        running = RunningJob(claim.lease, valid_until, claim.job.summary_id, claim.job.batch_id)
        running.on_first_token = self._keeper.loop.wake if claim.is_awaited else None
        self._keeper.hold(running)
        return running

    def _start_in_order_of_readiness(
        self, claimed: Sequence[tuple[Claim, RunningJob]], model: EngineModel
    ) -> None:
        """Start the jobs whose prompts are here, then the others, whose prompts are read together."""
        text_ids = [claim.job.text_id for claim, _ in claimed]
        missing = set(self._runner.prefetcher.missing(text_ids))
        later = [each for each in claimed if each[0].job.text_id in missing]
        if len(later) < len(claimed):
            self._start([each for each in claimed if each[0].job.text_id not in missing], model)
        if later:
            self._runner.prefetcher.load([*missing])
            self._start(later, model)

    def _start(self, claimed: Sequence[tuple[Claim, RunningJob]], model: EngineModel) -> None:
        ends = [Future[None]() for _ in claimed]
        self._runs.update(ends)
        engine_loop.start_all(
            self._run(claim, running, model, ended)
            for (claim, running), ended in zip(claimed, ends, strict=True)
        )

    async def _run(
        self, claim: Claim, running: RunningJob, model: EngineModel, ended: "Future[None]"
    ) -> None:
        try:
            await self._runner.run(claim, running, model)
        except Exception:  # noqa: BLE001  # the coroutine's entry point; the lease runs out, and the job is rescued
            telemetry.logger().exception(telemetry.LOOP_FAILED, loop="run")
        finally:
            self._keeper.drop(running)
            self._runs.discard(ended)
            ended.set_result(None)
