"""The inference worker: one engine's dispatcher, leases, monitor and doorbell."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from jobs import database, liveness, telemetry
from jobs.database import transaction
from jobs.doorbell import INFERENCE
from jobs.engines import reservations
from jobs.files.stores import make_store
from jobs.prompts.counter import PromptCounter
from jobs.prompts.tokenizer import Tokenizer
from jobs.scheduling.output_history import History
from jobs.scheduling.prefixes.prefix_replay import PrefixReplay
from jobs.scheduling.sizing import ClaimPolicy, policy_on
from jobs.sealing.content import ContentSealer
from jobs.settings import Settings
from jobs.tenants.cache_salts import CacheSalts
from jobs.transitions import Lease
from worker.doorbell import WorkerDoorbell
from worker.engine import loop as engine_loop
from worker.guides.checker import FormChecker
from worker.heartbeat import Heartbeat
from worker.inference.desk import Desk
from worker.inference.dispatcher import Dispatcher
from worker.inference.extender import Extender
from worker.inference.leases import LeaseKeeper
from worker.inference.live_output import LiveOutput
from worker.inference.monitor import EngineMonitor, credits_reuse, shares_prefix
from worker.inference.prefetch import PromptPrefetcher
from worker.inference.record import Recorder
from worker.inference.refusals import Patience, Refusals
from worker.inference.requests import RequestMaker
from worker.inference.slots import Slots
from worker.inference.tensors.outputs import OutputFiles
from worker.metrics.process import ProcessMetrics
from worker.metrics.runs import RunMetrics

# Leases must be renewed even while all other connections are waiting.
_HEARTBEAT_CONNECTIONS = 3
# For what runs do besides streaming: prompts that were not prefetched, and more blocks.
_MAX_THREADS = 4
_HISTORY_KEPT = timedelta(seconds=2)


class InferenceWorker:
    """The worker that feeds one engine."""

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        doorbell: WorkerDoorbell,
        metrics: ProcessMetrics | None = None,
        *,
        patience: Patience | None = None,
    ) -> None:
        """Set up without running anything.

        Args:
            settings: of this process.
            tokenizer: the engine's.
            doorbell: of this process.
            metrics: of this process; None: of nobody.
            patience: with refusals that may be about one prompt.
        """
        self._settings = settings
        self._doorbell = doorbell
        sealer = ContentSealer.of(settings)
        self._heartbeats = database.make_engine(
            settings.database, pool_size=_HEARTBEAT_CONNECTIONS, name="longbatch-leases", sealer=sealer
        )
        self._work = database.make_engine(settings.database, name="longbatch-inference", sealer=sealer)
        heartbeats = database.make_sessions(self._heartbeats)
        work = database.make_sessions(self._work, on_ended=doorbell.announce)
        # One of its own: what a tick sends is planned there, and no other transaction is in its way.
        self._ticks = database.make_engine(
            settings.database, pool_size=1, name="longbatch-ticks", sealer=sealer
        )
        ticking = database.make_sessions(self._ticks, on_ended=doorbell.announce)
        self.keeper = LeaseKeeper(heartbeats, settings.jobs)
        self.heartbeat = Heartbeat(
            INFERENCE,
            heartbeats,
            max_rescues=settings.jobs.max_rescues,
            engine_name=settings.engine.name,
            model=settings.engine.model,
        )
        self.monitor = EngineMonitor(settings, heartbeats, tokenizer, self.heartbeat)
        self._replay = PrefixReplay()
        policy = ClaimPolicy.of(settings, history=History(keep=_HISTORY_KEPT))
        self._policy = replace(policy, claimant=self.heartbeat.claimant)
        counter = PromptCounter(tokenizer)
        self._live = LiveOutput(doorbell.broker)
        stopping = threading.Event()
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="slot")
        # Errors of jobs are not encrypted.
        self._forms = FormChecker(quotes=not sealer.seals)
        self._metrics = RunMetrics((metrics or ProcessMetrics()).registry, settings.engine.name)
        self._metrics.watch(
            num_running=lambda: len(self.keeper.runs()),
            is_up=lambda: self.monitor.model is not None,
        )
        prefetcher = PromptPrefetcher(work, counter)
        desk = Desk(settings, ticking, stopping=stopping)
        slots = Slots(
            settings=settings,
            policy=self.policy,
            sessions=work,
            counter=counter,
            monitor=self.monitor,
            keeper=self.keeper,
            prefetcher=prefetcher,
            live=self._live,
            recorder=Recorder(
                desk,
                self.keeper,
                doorbell.ring,
                self._close_reservation,
                self._threads,
                stopping,
                OutputFiles(work),
                doorbell.announce,
                self._forms,
                self._metrics,
            ),
            threads=self._threads,
            stopping=stopping,
            extender=Extender(settings.engine.name, work, policy=self.policy, threads=self._threads),
            refusals=Refusals(patience),
            requests=RequestMaker(counter, CacheSalts(work)),
            store=make_store(settings),
            metrics=self._metrics,
        )
        self.dispatcher = Dispatcher(
            settings,
            monitor=self.monitor,
            keeper=self.keeper,
            slots=slots,
            desk=desk,
            metrics=self._metrics,
        )
        self.monitor.on_ready.append(self.dispatcher.loop)
        self.heartbeat.on_rescued = self.dispatcher.loop.wake
        # Without ticks no end of a job is stored: then its lease must run out, so that others rescue it.
        self.keeper.may_renew = lambda: not self.dispatcher.loop.is_late
        self._loops = (
            self.heartbeat.loop,
            self._doorbell.loop,
            self._live.loop,
            self.keeper.loop,
            self.monitor.loop,
            self.dispatcher.loop,
            self.dispatcher.prefetch_loop,
        )
        self.heartbeat.watch(self._loops)
        self.keeper.on_read = self.dispatcher.loop.wake

    def start(self) -> None:
        """Start all loops. Claims begin as soon as the engine answers a probe."""
        for loop in self._loops:
            loop.start()
        self._lag = engine_loop.start(self._metrics.watch_loop())
        telemetry.logger().info(telemetry.DISPATCHER_STARTED, engine=self._settings.engine.name)

    def policy(self) -> ClaimPolicy:
        """Return the policy that jobs are claimed under now: by what the engine can do, or is told to do."""
        model, told = self.monitor.model, self._settings.engine.reuses_prefix
        if model is None:
            return self._policy
        able = model.served.abilities
        self._replay.is_credited = credits_reuse(able, self._settings.engine)
        return policy_on(
            replace(self._policy, identity=self.monitor.identity),
            can_resume=able.can_resume,
            reuses_prefix=able.reuses_prefix if told is None else told,
            replay=self._replay if shares_prefix(model, self._settings.engine) else None,
        )

    def on_ring(self, _doorbell: str) -> None:
        """Claim jobs soon, because the doorbell rang."""
        self.dispatcher.loop.wake()

    def begin_stop(self) -> None:
        """Stop claiming jobs. Returns at once."""
        self.dispatcher.begin_stop()

    def stop(self) -> None:
        """Stop all threads. No job stays with this worker."""
        self.dispatcher.stop(grace_seconds=liveness.grace(self._settings.jobs.shutdown_grace_seconds))
        others = (self.keeper.loop, self._live.loop, self._doorbell.loop, self.heartbeat.loop)
        for part in (self.monitor, *others):
            part.begin_stop()
        for loop in (self.monitor.loop, *others):
            loop.join()
        self.heartbeat.leave()
        self._doorbell.finish()
        self._threads.shutdown()
        self._forms.close()
        self._lag.cancel()
        self.monitor.close()
        self._heartbeats.dispose()
        self._work.dispose()
        self._ticks.dispose()
        telemetry.logger().info(telemetry.DISPATCHER_STOPPED, engine=self._settings.engine.name)

    def _close_reservation(self, lease: Lease) -> None:
        """Delete a draining reservation. If that fails, the monitor does it later."""
        try:
            with transaction(database.make_sessions(self._work)) as session:
                reservations.close(session, lease.lease_id)
        except SQLAlchemyError as error:
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="reservation", error=type(error).__name__)
