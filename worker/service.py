"""The service worker: the duties of every capability, each in a thread of its own."""

import threading
import time
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

from jobs import database, webhooks
from jobs.doorbell import INFERENCE, SERVICE
from jobs.prompts.counter import PromptCounter
from jobs.prompts.tokenizer import Tokenizer
from jobs.sealing.content import ContentSealer
from jobs.settings import Settings
from jobs.traces import configured
from jobs.webhooks.vault import Vault
from worker import batches, erasure, maintenance, summaries, traces
from worker.documents import rounds as documents
from worker.doorbell import WorkerDoorbell
from worker.duties import Duty, ServiceContext, Woken
from worker.guides.checker import FormChecker
from worker.heartbeat import Heartbeat
from worker.loop import Loop
from worker.metrics.process import ProcessMetrics
from worker.rounds import do_each
from worker.traces import TraceWriter
from worker.turns import WorkRunner
from worker.webhooks import delivery
from worker.webhooks.delivery import Deliverer

# An exchange may last until its deadline; another worker redelivers one that is cut off here.
_SENDER_EXIT_SECONDS: Final = 1.0
# For the collector of traces to take the spans of the last webhooks.
_LAST_SPANS_SECONDS: Final = 0.5
# Counting, chunking and extraction still under way then is released; another worker may claim it at once.
_WORK_EXIT_SECONDS: Final = 3.0


class ServiceWorker:
    """The worker for everything that needs no engine. Any number of them may run.

    Raises:
        WebhookSecretError: the configured secret cannot sign.
        VaultKeyError: a configured key that seals secrets is malformed.
    """

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        doorbell: WorkerDoorbell,
        metrics: ProcessMetrics | None = None,
    ) -> None:
        """Args: metrics: of the process; None: of nobody."""
        self._doorbell = doorbell
        self._metrics = metrics or ProcessMetrics()
        if settings.webhooks.secret:
            webhooks.check_secret(settings.webhooks.secret.get_secret_value())
        sessions = database.make_sessions(on_ended=self._on_ended)
        lease = timedelta(seconds=settings.maintenance.lease_seconds)
        shortest = min(lease, timedelta(seconds=settings.documents.lease_seconds))
        self._runner = WorkRunner(sessions, shortest_lease=shortest)
        self._stopping = threading.Event()
        self._checker = FormChecker()
        context = ServiceContext(
            settings=settings,
            sessions=sessions,
            counter=PromptCounter(tokenizer),
            runner=self._runner,
            lease=lease,
            find_fault=self._checker.check,
            is_stopping=self._stopping.is_set,
            wake=self._wake,
        )
        vault = Vault.of(settings.webhooks)
        wake = partial(self._wake, "deliver")
        collector = configured.collector_of(settings.traces)
        self._traces = (
            None if collector is None else TraceWriter(sessions, collector, is_stopping=self._stopping.is_set)
        )
        trace = None if self._traces is None else self._traces.add
        self._deliverer = (
            Deliverer(sessions, settings.webhooks, vault, wake=wake, trace=trace) if vault else None
        )
        self._duties = (
            *delivery.duties(context, self._deliverer, vault),
            *maintenance.duties(context),
            *erasure.duties(context, doorbell.broker),
            *batches.duties(context),
            *summaries.duties(context),
            *documents.duties(context, tokenizer),
            *traces.duties(context, self._traces),
        )
        self._loops = {
            each.name: Loop(
                each.name,
                partial(self._do, each.name),
                interval=each.interval,
                longest_step=max(other.longest_step for other in self._duties if other.name == each.name),
            )
            for each in self._duties
        }
        self._heartbeat = Heartbeat(SERVICE, sessions, max_rescues=settings.jobs.max_rescues)
        self._heartbeat.on_rescued = partial(self._wake, "inference")
        self._heartbeat.watch((*self._loops.values(), self._doorbell.loop, self._runner.loop))
        num_loops = len(self._loops) + 2  # and those of leases and the heartbeat
        self._pool = database.make_engine(
            settings.database,
            pool_size=num_loops,
            name="longbatch-service",
            sealer=ContentSealer.of(settings),
        )
        sessions.configure(bind=self._pool)

    def start(self) -> None:
        """Start every loop."""
        if self._deliverer:
            self._deliverer.start()
        for loop in (self._heartbeat.loop, self._doorbell.loop, self._runner.loop, *self._loops.values()):
            loop.start()

    def on_ring(self, doorbell: str) -> None:
        """Start a round of the duties that this doorbell is for."""
        for duty in self._duties:
            if doorbell in duty.rung_by:
                self._loops[duty.name].wake()

    def begin_stop(self) -> None:
        """Start no further round. Leases of work under way are renewed until it ends."""
        self._stopping.set()
        for loop in (*self._loops.values(), self._doorbell.loop, self._heartbeat.loop):
            loop.begin_stop()

    def stop(self) -> None:
        """Stop all threads. Rounds under way end first, except slow webhook deliveries."""
        self.begin_stop()
        self._runner.interrupt()
        deadline = time.monotonic() + _WORK_EXIT_SECONDS
        for loop in self._loops.values():
            loop.join(max(0.0, deadline - time.monotonic()))
        self._runner.give_back()
        self._runner.loop.stop()
        for loop in (*self._loops.values(), self._doorbell.loop, self._heartbeat.loop):
            loop.join()
        self._heartbeat.leave()
        self._doorbell.finish()
        if self._deliverer:
            self._deliverer.stop(within=_SENDER_EXIT_SECONDS)
        if self._traces:
            self._traces.finish(within=_LAST_SPANS_SECONDS)
        self._checker.close()
        self._pool.dispose()

    def _do(self, name: str) -> None:
        do_each([partial(self._do_one, duty) for duty in self._duties if duty.name == name])

    def _do_one(self, duty: Duty) -> None:
        with self._metrics.timing(duty.name):
            has_work = duty.run()
        if has_work:
            for name in duty.wakes:
                self._wake(name)

    def _on_ended(self, ended: Collection[UUID]) -> None:
        """Tell callers that wait, and deliver what webhooks want of it."""
        self._doorbell.announce(ended)
        self._wake("deliver")

    def _wake(self, name: Woken) -> None:
        if name == INFERENCE:
            self._doorbell.ring(INFERENCE)
        elif name in self._loops:  # without a vault nothing is delivered
            self._loops[name].wake()
