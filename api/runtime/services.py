"""The services of a running API, opened together and closed together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple, Unpack
from uuid import UUID

from sqlalchemy.orm import Session

from api.runtime.api_keys import ApiKeys, Caller
from api.runtime.body_process import BodyProcess
from api.runtime.cached_value import CachedValue
from api.runtime.compute import Compute
from api.runtime.database import Transactions, request_tenant
from api.runtime.destinations import Destinations
from api.runtime.doorbell import Doorbell
from api.runtime.event_streams import EventStreams
from api.runtime.group_commit import NUM_LANES, NUM_LANES_OF_KEYS, GroupCommit
from api.runtime.job_polling import JobPoller
from api.runtime.key_places import KeyPlaces
from api.runtime.live_output import LiveReader
from api.runtime.open_requests import OpenRequests
from api.runtime.queue_positions import QueuePositions
from api.runtime.quotas import QuotaCache
from api.runtime.rate_limits import Rates
from api.runtime.readiness import Readiness
from api.runtime.row_changes import RowChanges
from api.runtime.tokenizer import LoadedTokenizer
from api.runtime.traces import trace_of_request
from jobs import batches, liveness, queries, summaries
from jobs.adapters.offers import ModelOffer, read_offer, read_takes
from jobs.batches import BatchStatus
from jobs.doorbell import EVENTS
from jobs.engines import registry
from jobs.engines.tensors import ModelTensors
from jobs.erasure import zero_retention
from jobs.errors import LongbatchError
from jobs.models import Job
from jobs.prompts.abilities import Takes
from jobs.prompts.tokenizer import Tokenizer
from jobs.queries import JobStatus
from jobs.sealing.content import ContentSealer
from jobs.settings import Settings
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec
from jobs.summaries import SummaryStatus
from jobs.tenants.keys import Scope
from jobs.webhooks import destinations as webhook_destinations

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Everything that turns a request into a job.

    Attributes:
        settings: of this process.
        tokenizer: counts short prompts at once; None: not loaded yet, so all are counted later.
        max_inline_chars: longest prompt that is counted at once.
        takes: what engines can be asked for.
        tensors: what models declare by name; None: the caller may not name any.
    """

    settings: Settings
    tokenizer: Tokenizer | None
    max_inline_chars: int
    takes: Takes = field(default_factory=dict)
    tensors: ModelTensors | None = None


@dataclass(frozen=True, slots=True)
class Services:
    """The services that routes use.

    Attributes:
        group_commit: stores single jobs.
        key_commit: likewise, of keys with quotas.
        followers: what else polls rows for readers who wait; the bell of ended rows wakes it.
        engines: what engines can be asked for, as of a few seconds ago.
        tensors: what their models declare by name, likewise.
        without_retention: the tenants whose content goes once it was delivered, likewise.
        cpu: threads that parse, count and compress; more would only hold more bodies in memory.
    """

    settings: Settings
    transactions: Transactions
    api_keys: ApiKeys
    rates: Rates
    open_requests: OpenRequests
    quotas: QuotaCache
    doorbell: Doorbell
    destinations: Destinations
    group_commit: GroupCommit
    key_commit: GroupCommit
    key_places: KeyPlaces
    poller: JobPoller
    live: LiveReader
    job_changes: RowChanges[JobStatus]
    batch_changes: RowChanges[BatchStatus]
    summary_changes: RowChanges[SummaryStatus]
    event_streams: EventStreams
    queue_positions: QueuePositions
    tokenizer: LoadedTokenizer
    readiness: Readiness
    cpu: Compute
    engines: CachedValue[Takes]
    tensors: CachedValue[ModelTensors]
    without_retention: CachedValue[frozenset[UUID]]
    followers: "list[RowChanges[Any]]" = field(default_factory=list)

    async def acceptance(
        self, *, max_inline_chars: int | None = None, scopes: Collection[Scope] = ()
    ) -> Acceptance:
        """Return what turns requests into jobs, with the tokenizer if it is loaded by now.

        Args:
            max_inline_chars: longest prompt that is counted at once; None: as it is set.
            scopes: what the caller may do besides.
        """
        chars = self.settings.api.inline_count_chars if max_inline_chars is None else max_inline_chars
        tensors = await self.tensors.get() if Scope.ENGINE in scopes else None
        takes = await self.engines.get()
        return Acceptance(self.settings, self.tokenizer.current, chars, takes, tensors)

    async def offer(self) -> ModelOffer:
        """Read what the caller may name in `model`."""
        served, tenant_id = self.settings.engine.model, request_tenant.get()
        return await self.transact(read_offer, served=served, tenant_id=tenant_id)

    async def locate(self, specs: Sequence[JobSpec]) -> list[JobSpec | LongbatchError]:
        """Find the models of these jobs, and their adapters, by what requests call them.

        Returns:
            Each job as it can be submitted, or why it cannot.
        """
        served = self.settings.engine.model
        if all(spec.model == served for spec in specs):
            return [*specs]
        offer = await self.offer()
        return [_located(spec, offer) for spec in specs]

    def submitter(self, caller: Caller) -> Submitter:
        """Return who submits the caller's jobs, within its quotas and the request's trace."""
        return Submitter(
            caller.tenant_id,
            registry.configured_capacity(self.settings.engine),
            self.quotas.admission(caller.tenant_id, caller.limits, of_key=caller.quota),
            trace=trace_of_request(),
            api_key_id=caller.api_key_id,
            key_quota=caller.quota,
        )

    async def check_destination(self, url: str | None, *, param: str = "webhook_url") -> None:
        """Check that the URL's host, as it resolves now, may receive webhooks.

        Raises:
            WebhookUrlError: it breaks a rule, or resolves to a private address.
        """
        allowed = self.settings.webhooks.allowed_hosts
        await self.destinations.check(url, allowed_hosts=allowed, param=param, tenant_id=request_tenant.get())

    async def admit_callback(self, url: str | None, *, tenant_id: UUID) -> None:
        """Check the URL of a request's webhooks, if it has one, and register it.

        Raises:
            WebhookUrlError: it breaks a rule, or resolves to a private address.
            DestinationLimitError: the tenant would have too many destinations.
        """
        await self.check_destination(url)
        await self.register_destinations([url] if url else [], tenant_id=tenant_id)

    async def register_destinations(self, urls: Collection[str], *, tenant_id: UUID) -> None:
        """Add these URLs to the tenant's webhook destinations.

        Uses its own transaction: a claim of webhooks must never wait for one that stores jobs.

        Raises:
            DestinationLimitError: the tenant would have too many destinations.
        """
        if new := self.destinations.unnamed(urls, tenant_id=tenant_id):
            limit = self.settings.webhooks.max_destinations
            register = partial(webhook_destinations.register, tenant_id=tenant_id, urls=new, limit=limit)
            await self.transactions.run(register, tenant_ids=[tenant_id])
            self.destinations.note_named(new, tenant_id=tenant_id)

    def end_waits(self) -> None:
        """End all waits and streams; used when the server stops."""
        self.poller.release()
        self.job_changes.release()
        self.batch_changes.release()
        self.summary_changes.release()
        for each in self.followers:
            each.release()

    async def transact(
        self, verb: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `verb` in a transaction of the request's tenant and commit; see `Transactions.run`."""
        return await self.transactions.run(lambda session: verb(session, *args, **kwargs))

    async def submit(
        self, by: Submitter, verb: Callable[Concatenate[Session, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `verb`, which submits jobs, as `transact` does, in a place of the key that submits them."""
        async with self.key_places.place(by.key_quota):
            return await self.transact(verb, *args, **kwargs)

    async def submit_one(self, spec: JobSpec, by: Submitter) -> Job:
        """Submit a job, together with others that arrive now; see `GroupCommit.submit`."""
        commit = self.group_commit if by.key_quota is None else self.key_commit
        return await commit.submit(spec, by)

    async def compute(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on about `num_bytes` in a thread, on the request's tenant's turn."""
        return await self.cpu.run(request_tenant.get(), num_bytes, work, *args, **kwargs)

    async def compute_apart(self, num_bytes: int, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run `work` as `compute` does, but long work in another process."""
        return await self.cpu.run_apart(request_tenant.get(), num_bytes, work, *args)


@asynccontextmanager
async def open_services(
    settings: Settings, body_process: BodyProcess | None = None
) -> AsyncIterator[Services]:
    """Open all services and start their loops; close them at exit.

    Connections open on first use, so no server has to be up yet.

    Args:
        settings: of the process.
        body_process: works on long bodies; None: the first of them starts one.
    """
    transactions = Transactions(settings.database, ContentSealer.of(settings))
    tokenizer = LoadedTokenizer(settings.tokenizer)
    poller = JobPoller(transactions)
    job_changes = RowChanges(transactions, queries.read_status)
    batch_changes = RowChanges(transactions, batches.read_status)
    summary_changes = RowChanges(transactions, summaries.read_status)

    def look_now(ended: Collection[UUID]) -> None:
        """Answer the callers that wait for one of these jobs, batches or summaries."""
        for each in (poller, job_changes, batch_changes, summary_changes):
            each.poll_now(ended)
        for follower in services.followers:
            follower.poll_now(ended)

    remembered = settings.api.engine_cache_seconds

    async def read_engines() -> Takes:
        return await transactions.run_across(read_takes)

    async def read_without_retention() -> frozenset[UUID]:
        return await transactions.run_across(zero_retention.tenants)

    async def read_tensors() -> ModelTensors:
        return await transactions.run_across(registry.read_tensors)

    cpu = Compute(process=body_process)
    bell = Doorbell(settings.broker).start()
    services = Services(
        settings=settings,
        transactions=transactions,
        api_keys=ApiKeys(transactions, settings),
        rates=Rates(settings.broker),
        open_requests=OpenRequests(settings.api.max_connections),
        quotas=QuotaCache(),
        doorbell=bell,
        destinations=Destinations(),
        group_commit=GroupCommit(transactions, on_stored=bell.ring_for),
        key_commit=GroupCommit(transactions, on_stored=bell.ring_for),
        key_places=KeyPlaces(max_seconds=settings.database.pool_timeout_seconds),
        poller=poller,
        live=LiveReader(settings.broker, on_ended=look_now),
        job_changes=job_changes,
        batch_changes=batch_changes,
        summary_changes=summary_changes,
        event_streams=EventStreams(transactions, settings.api),
        queue_positions=QueuePositions(settings),
        tokenizer=tokenizer,
        readiness=Readiness(settings, transactions, tokenizer),
        cpu=cpu,
        # While there is no engine, each request looks: the first one's abilities are known at once.
        engines=CachedValue(read_engines, seconds=remembered, old_seconds=remembered, keeps=bool),
        tensors=CachedValue(read_tensors, seconds=remembered, old_seconds=remembered),
        without_retention=CachedValue(read_without_retention, seconds=remembered, old_seconds=remembered),
    )
    loops = [
        tokenizer.load(),
        services.poller.run(),
        services.live.run(),
        services.job_changes.run(),
        services.batch_changes.run(),
        services.summary_changes.run(),
        services.event_streams.run(),
        *(services.group_commit.run() for _ in range(NUM_LANES)),
        *(services.key_commit.run() for _ in range(NUM_LANES_OF_KEYS)),
    ]
    announcing: set[asyncio.Task[None]] = set()

    def on_ended(ended: Collection[UUID]) -> None:
        """Answer the callers that wait, here and in other processes."""
        look_now(ended)
        services.doorbell.ring(EVENTS)  # a webhook may want them; ends in the API are few
        announcing.add(task := asyncio.create_task(services.live.announce(ended)))
        task.add_done_callback(announcing.discard)

    transactions.on_ended = on_ended
    tasks = [_begin(loop) for loop in loops]
    try:
        yield services
    finally:
        for task in tasks:
            task.remove_done_callback(_end_with)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await services.queue_positions.close()
        await services.engines.close()
        await services.tensors.close()
        await services.without_retention.close()
        services.doorbell.close()
        cpu.close()
        await services.rates.close()
        await transactions.close()


def _begin(loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a loop. If it fails, the process ends: its callers would wait for it in vain."""
    task = asyncio.create_task(loop, name=getattr(loop, "__qualname__", "loop"))
    task.add_done_callback(_end_with)
    return task


def _end_with(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        liveness.end_process(task.get_name(), error)


def _located(spec: JobSpec, offer: ModelOffer) -> JobSpec | LongbatchError:
    try:
        model, adapter = offer.find(spec.model)
    except LongbatchError as error:
        return error
    return replace(spec, model=model, adapter=adapter)
