"""The services of a running API, opened together and closed together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar, TypeVarTuple, Unpack
from uuid import UUID

from api.runtime.api_keys import Callers
from api.runtime.compute import Compute
from api.runtime.database import Transactions, request_tenant
from api.runtime.destinations import Destinations
from api.runtime.doorbell import Doorbell
from api.runtime.event_streams import EventStreams
from api.runtime.group_commit import NUM_LANES, Intake
from api.runtime.job_polling import Watch
from api.runtime.live_output import LiveReader
from api.runtime.queue_positions import Places
from api.runtime.quotas import Allowances
from api.runtime.rate_limits import Rates
from api.runtime.readiness import Readiness
from api.runtime.row_changes import Followers
from api.runtime.tokenizer import LoadedTokenizer
from jobs import batches, queries, summaries
from jobs.batches import BatchGlance
from jobs.engines import registry
from jobs.prompts.tokenizer import Tokenizer
from jobs.queries import Glance
from jobs.settings import Settings
from jobs.summaries import SummaryGlance
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
    """

    settings: Settings
    tokenizer: Tokenizer | None
    max_inline_chars: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The services that routes use.

    Attributes:
        cpu: threads that parse, count and compress; more would only hold more bodies in memory.
    """

    settings: Settings
    transactions: Transactions
    callers: Callers
    rates: Rates
    allowances: Allowances
    doorbell: Doorbell
    destinations: Destinations
    intake: Intake
    watch: Watch
    live: LiveReader
    job_followers: Followers[Glance]
    batch_followers: Followers[BatchGlance]
    summary_followers: Followers[SummaryGlance]
    event_streams: EventStreams
    places: Places
    tokenizer: LoadedTokenizer
    readiness: Readiness
    cpu: Compute

    def acceptance(self, *, max_inline_chars: int | None = None) -> Acceptance:
        """Return what turns requests into jobs, with the tokenizer if it is loaded by now."""
        chars = self.settings.api.inline_count_chars if max_inline_chars is None else max_inline_chars
        return Acceptance(self.settings, self.tokenizer.current, chars)

    async def check_destination(self, url: str | None, *, param: str = "webhook_url") -> None:
        """Check that the URL's host, as it resolves now, may receive webhooks.

        Raises:
            WebhookUrlError: it breaks a rule, or resolves to a private address.
        """
        allowed = self.settings.webhooks.allowed_hosts
        await self.destinations.check(url, allowed_hosts=allowed, param=param, tenant_id=request_tenant.get())

    async def name_destinations(self, urls: Collection[str], *, tenant_id: UUID) -> None:
        """Add these URLs to the tenant's webhook destinations.

        Uses its own transaction: a claim of webhooks must never wait for one that stores jobs.

        Raises:
            DestinationLimitError: the tenant would have too many destinations.
        """
        if urls:
            limit = self.settings.webhooks.max_destinations
            name = partial(webhook_destinations.name, tenant_id=tenant_id, urls=urls, limit=limit)
            await self.transactions.run(name)

    def release(self) -> None:
        """End all waits and streams; used when the server stops."""
        self.watch.release()
        self.job_followers.release()
        self.batch_followers.release()
        self.summary_followers.release()

    async def compute(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on about `num_bytes` in a thread, on the request's tenant's turn."""
        return await self.cpu.run(request_tenant.get(), num_bytes, work, *args, **kwargs)

    async def compute_apart(self, num_bytes: int, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run `work` as `compute` does, but long work in another process."""
        return await self.cpu.run_apart(request_tenant.get(), num_bytes, work, *args)


@asynccontextmanager
async def open_parts(settings: Settings) -> AsyncIterator[Parts]:
    """Open all services and start their loops; close them at exit.

    Connections open on first use, so no server has to be up yet.
    """
    transactions = Transactions(settings.database)
    tokenizer = LoadedTokenizer(settings.tokenizer)
    watch = Watch(transactions)
    parts = Parts(
        settings=settings,
        transactions=transactions,
        callers=Callers(transactions, settings),
        rates=Rates(settings.broker),
        allowances=Allowances(),
        doorbell=Doorbell(settings.broker).start(),
        destinations=Destinations(),
        intake=Intake(transactions, registry.configured_capacity(settings.engine)),
        watch=watch,
        live=LiveReader(settings.broker, on_ended=watch.hurry),
        job_followers=Followers(transactions, queries.glance),
        batch_followers=Followers(transactions, batches.glance),
        summary_followers=Followers(transactions, summaries.glance),
        event_streams=EventStreams(transactions, settings.api),
        places=Places(settings),
        tokenizer=tokenizer,
        readiness=Readiness(settings, transactions, tokenizer),
        cpu=Compute(),
    )
    loops = [
        tokenizer.load(),
        parts.watch.run(),
        parts.live.run(),
        parts.job_followers.run(),
        parts.batch_followers.run(),
        parts.summary_followers.run(),
        parts.event_streams.run(),
        *(parts.intake.run() for _ in range(NUM_LANES)),
    ]
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield parts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await parts.places.close()
        parts.doorbell.close()
        await parts.rates.close()
        await transactions.close()
