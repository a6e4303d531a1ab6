"""The service worker: maintenance loops and webhook delivery, woken by the doorbell or at intervals."""

import sys
import time
from datetime import timedelta
from functools import partial
from typing import Final

from jobs import database, webhooks
from jobs.batches.context import BatchTools
from jobs.batches.validation import Validation
from jobs.database import transaction
from jobs.doorbell import EVENTS, INFERENCE
from jobs.engines import registry
from jobs.files.stores import make_store
from jobs.preparation import Counting
from jobs.prompts.counter import PromptCounter
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import Settings
from jobs.summaries.planning import Planning, PlanningTools
from jobs.webhooks.vault import Vault
from worker import batches, maintenance, summaries
from worker.documents import pruning
from worker.documents.extractor import Extraction
from worker.doorbell import WorkerDoorbell
from worker.loop import Loop
from worker.rounds import do_each
from worker.turns import TurnTaker
from worker.webhooks import delivery
from worker.webhooks.delivery import Deliverer

_NUM_LOOPS: Final = 9
_SWITCH_SECONDS: Final = 0.0005  # a tenth of the default
# Prompts per round: engines can start on the first ones while the others are counted.
_PREPARED_AT_ONCE: Final = 20
# Summaries per round: engines can start on the first ones while the others are chunked.
_PLANNED_AT_ONCE: Final = 20
# An exchange may last until its deadline; another worker redelivers one that is cut off here.
_SENDER_EXIT_SECONDS: Final = 1.0
# Counting, chunking and extraction still under way then is released; another worker may claim it at once.
_WORK_EXIT_SECONDS: Final = 3.0


class ServiceWorker:
    """The worker for everything that needs no engine. Any number of them may run.

    Raises:
        WebhookSecretError: the configured secret cannot sign.
        VaultKeyError: a configured key that seals secrets is malformed.
    """

    def __init__(self, settings: Settings, tokenizer: Tokenizer, doorbell: WorkerDoorbell) -> None:
        self._settings = settings
        self._counter = PromptCounter(tokenizer)
        self._doorbell = doorbell
        if settings.webhooks.secret:
            webhooks.check_secret(settings.webhooks.secret.get_secret_value())
        num_loops = _NUM_LOOPS + 1 + settings.documents.concurrency
        self._engine = database.make_engine(settings.database, pool_size=num_loops, name="longbatch-service")
        self._sessions = database.make_sessions(self._engine)
        every = settings.maintenance
        self._turns = TurnTaker(
            self._sessions,
            shortest_lease=timedelta(seconds=min(every.lease_seconds, settings.documents.lease_seconds)),
        )
        lease = timedelta(seconds=every.lease_seconds)
        self._counting = Counting(self._counter, registry.configured_capacity(settings.engine), lease)
        self._rounds = maintenance.JobRounds(self._sessions)
        self._summary_rounds = summaries.SummaryRounds(self._sessions)
        self._prepare = Loop("prepare", self.prepare, interval=every.prepare_seconds)
        self._expire = Loop("expire", self.expire, interval=every.expire_seconds)
        self._batch_tools = BatchTools.of(settings, self._counter)
        self._file_rounds = batches.BatchRounds(self._sessions, self._batch_tools)
        self._validation = Validation(self._batch_tools, lease)
        self._validate = Loop("validate", self.validate, interval=every.batch_seconds)
        self._advance = Loop("batches", self.advance, interval=every.batch_seconds)
        self._planning = Planning(PlanningTools.of(settings, self._counter), lease)
        self._plan = Loop("summaries", self.plan, interval=every.summary_seconds)
        self._deliver = Loop("deliver", self.deliver, interval=every.deliver_seconds)
        self._vault = vault = Vault.of(settings.webhooks)
        self._deliverer = (
            Deliverer(self._sessions, settings.webhooks, vault, wake=self._deliver.wake) if vault else None
        )
        self._extraction = Extraction(
            settings.documents, tokenizer, make_store(settings.files), on_ended=self.document_ended
        )
        self._extract = [
            Loop(f"documents-{number}", self.extract, interval=every.document_seconds)
            for number in range(settings.documents.concurrency)
        ]
        self._loops = [
            self._prepare,
            Loop("rescue", self.rescue, interval=every.rescue_seconds),
            self._expire,
            Loop("doorbell", self.ring, interval=every.doorbell_seconds),
            Loop("prune", self.prune, interval=every.prune_seconds),
            self._validate,
            self._advance,
            self._plan,
            *([self._deliver] if self._deliverer else []),
            *self._extract,
        ]

    def start(self) -> None:
        """Start every loop."""
        # Threads that count or parse must yield soon: exchanges take the interpreter lock often and briefly.
        sys.setswitchinterval(_SWITCH_SECONDS)
        if self._deliverer:
            self._deliverer.start()
        for loop in (self._doorbell.loop, self._turns.loop, *self._loops):
            loop.start()

    def on_ring(self, doorbell: str) -> None:
        """Wake the loops that this doorbell is for: webhook delivery, or all that new work may need."""
        self._doorbell.acknowledge(doorbell)
        if doorbell == EVENTS:
            self._deliver.wake()
            return
        for loop in (self._prepare, self._validate, self._advance, self._plan, self._deliver, *self._extract):
            loop.wake()

    def begin_stop(self) -> None:
        """Start no further round. Leases of work under way are renewed until it ends."""
        for loop in (*self._loops, self._doorbell.loop):
            loop.begin_stop()

    def stop(self) -> None:
        """Stop all threads. Rounds under way end first, except slow webhook deliveries."""
        self.begin_stop()
        self._turns.interrupt()
        deadline = time.monotonic() + _WORK_EXIT_SECONDS
        for loop in self._loops:
            loop.join(max(0.0, deadline - time.monotonic()))
        self._turns.give_back()
        self._turns.loop.stop()
        for loop in (*self._loops, self._doorbell.loop):
            loop.join()
        if self._deliverer:
            self._deliverer.stop(within=_SENDER_EXIT_SECONDS)
        self._engine.dispose()

    def prepare(self) -> None:
        """Count some of the waiting prompts. The next round follows at once while more wait."""
        num_taken, prepared = maintenance.prepare(
            self._turns, self._counting, limit=_PREPARED_AT_ONCE, is_stopping=self._is_stopping
        )
        if num_taken == _PREPARED_AT_ONCE:
            self._prepare.wake()
        if maintenance.any_queued(prepared):
            self._doorbell.ring(INFERENCE)
        if maintenance.any_to_deliver(prepared):
            self._deliver.wake()

    def deliver(self) -> None:
        """Record finished deliveries and hand due ones to idle senders."""
        if self._deliverer:
            self._deliverer.run_once()

    def validate(self) -> None:
        """Accept or refuse one batch. Another round follows at once, as more may wait."""
        if batches.validate_next(self._turns, self._validation):
            self._validate.wake()
            self._advance.wake()
            self._deliver.wake()

    def advance(self) -> None:
        """Move every batch one step forward. The next round follows at once while anything moved."""
        moved = batches.advance(self._sessions, self._batch_tools, is_stopping=self._is_stopping)
        if moved.num_steps:
            self._advance.wake()
            self._deliver.wake()
        if moved.any_preparing:
            self._prepare.wake()
        if moved.any_queued:
            self._doorbell.ring(INFERENCE)

    def plan(self) -> None:
        """Plan summaries and stop the jobs of those that end early. More follow at once."""
        num_tried = summaries.plan(
            self._turns, self._planning, limit=_PLANNED_AT_ONCE, is_stopping=self._is_stopping
        )
        num_stopped = self._summary_rounds.stop(is_stopping=self._is_stopping)
        if num_tried:
            self._prepare.wake()
        if num_tried or num_stopped:
            self._deliver.wake()
        if num_tried == _PLANNED_AT_ONCE or num_stopped:
            self._plan.wake()

    def extract(self) -> None:
        """Extract waiting documents until none is left."""
        while not self._is_stopping() and self._turns.take(self._extraction):
            pass

    def document_ended(self) -> None:
        """Wake planning: a document has its text or failed, and summaries may wait for it."""
        self._plan.wake()

    def rescue(self) -> None:
        """Rescue the jobs of silent workers and wake the inference workers."""
        if self._rounds.rescue(max_rescues=self._settings.jobs.max_rescues):
            self._doorbell.ring(INFERENCE)

    def expire(self) -> None:
        """End some of the overdue jobs and of those that fit no engine. More follow at once."""
        do_each(
            [
                self._expire_jobs,
                self._summary_rounds.expire,
                self._rounds.reject_misfits,
                self._sweep_deleted,
            ]
        )

    def _expire_jobs(self) -> None:
        if self._rounds.expire():
            self._expire.wake()

    def _sweep_deleted(self) -> None:
        if maintenance.sweep_deleted(self._sessions):
            self._expire.wake()

    def ring(self) -> None:
        """Wake the inference workers if a job waits for them."""
        with transaction(self._sessions) as session:
            has_queued = maintenance.has_queued(session)
        if has_queued:
            self._doorbell.ring(INFERENCE)

    def prune(self) -> None:
        """Remove everything past its retention. A failing step does not keep the others from running."""
        settings, stopping = self._settings, self._is_stopping
        do_each(
            [
                partial(delivery.sweep, self._sessions, is_stopping=stopping),
                self._reseal_secrets,
                partial(self._rounds.prune, settings.jobs, is_stopping=stopping),
                partial(
                    self._file_rounds.prune,
                    retention=timedelta(days=settings.batches.retention_days),
                    is_stopping=stopping,
                ),
                partial(
                    self._summary_rounds.prune,
                    retention=timedelta(days=settings.jobs.retention_days),
                    is_stopping=stopping,
                ),
                partial(pruning.prune, self._sessions, is_stopping=stopping),
            ]
        )

    def _reseal_secrets(self) -> None:
        if self._vault:
            delivery.seal_anew(self._sessions, self._vault, is_stopping=self._is_stopping)

    def _is_stopping(self) -> bool:
        return self._prepare.is_stopping
