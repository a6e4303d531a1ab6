"""Polls jobs for all callers: concurrent reads share a query, and one query per 100 ms serves all waits."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.runtime.database import Transactions
from jobs import queries, telemetry
from jobs.errors import LongbatchError, UnavailableError
from jobs.models import Job

INTERVAL: Final = 0.1  # seconds; longest delay between a job's end and the response to a waiting caller
_AT_ONCE: Final = float("-inf")  # instead of when the last poll was


@dataclass(eq=False, slots=True)
class _Ask:
    """A caller's request for a job.

    Attributes:
        waits: True: answer once the job has ended; False: answer with its row now.
        future: gets the row; None: the tenant has no such job.
        has_failed: the read that it came with failed; another one follows, since it waits anyway.
    """

    job_id: UUID
    tenant_id: UUID
    waits: bool
    future: asyncio.Future[Job | None]
    has_failed: bool = False


class JobPoller:
    """Reads jobs for all callers, with one connection at a time."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._new: list[_Ask] = []
        self._waiting: set[_Ask] = set()
        self._reading: Sequence[_Ask] = ()
        self._asked = asyncio.Event()
        self._released = False
        self._polled_at = 0.0

    async def now(self, job_id: UUID, *, tenant_id: UUID) -> Job | None:
        """Read the job now.

        Returns:
            None: the tenant has no such job.

        Raises:
            UnavailableError: the database does not answer; try again.
        """
        return await self._ask(job_id, tenant_id, waits=False).future

    async def until_ended(self, job_id: UUID, *, tenant_id: UUID, seconds: float) -> Job | None:
        """Wait until the job has ended or the time is up, and return it.

        Returns:
            None: the tenant has no such job.

        Raises:
            UnavailableError: the database does not answer; try again.
        """
        ask = self._ask(job_id, tenant_id, waits=True)
        try:
            async with asyncio.timeout(seconds):
                return await ask.future
        except TimeoutError:
            return await self.now(job_id, tenant_id=tenant_id)
        finally:
            self._waiting.discard(ask)

    def poll_now(self, job_ids: Collection[UUID]) -> None:
        """Poll at once if a caller waits for one of these jobs, which have ended."""
        if any(ask.job_id in job_ids for ask in (*self._waiting, *self._reading)):
            self._polled_at = _AT_ONCE
            self._asked.set()

    def release(self) -> None:
        """End all waits, now and from now on; used when the server stops."""
        self._released = True
        self._new += self._waiting
        self._waiting.clear()
        self._asked.set()

    @property
    def is_released(self) -> bool:
        """Whether all waits have been ended for good."""
        return self._released

    async def run(self) -> None:
        """Answer requests until cancelled."""
        while True:
            await self._until_due()
            self._reading, self._new = [ask for ask in self._new if not ask.future.done()], []
            try:
                await self._poll(self._reading)
            except Exception as error:  # noqa: BLE001  # the loop must outlive any one failure
                _fail([ask for ask in self._reading if ask.has_failed or not ask.waits], error)
                await asyncio.sleep(INTERVAL)
                self._read_again([ask for ask in self._reading if not ask.future.done()])

    def _ask(self, job_id: UUID, tenant_id: UUID, *, waits: bool) -> _Ask:
        ask = _Ask(job_id, tenant_id, waits, asyncio.get_running_loop().create_future())
        self._new.append(ask)
        self._asked.set()
        return ask

    def _read_again(self, asks: Sequence[_Ask]) -> None:
        for ask in asks:
            ask.has_failed = True
        self._new[:0] = asks
        if asks:
            self._asked.set()

    async def _until_due(self) -> None:
        """Return on a new request, or when the next poll for waiting callers is due."""
        timeout = self._polled_at + INTERVAL - asyncio.get_running_loop().time() if self._waiting else None
        try:
            async with asyncio.timeout(timeout):
                await self._asked.wait()
        except TimeoutError:
            pass
        self._asked.clear()

    async def _poll(self, asks: Sequence[_Ask]) -> None:
        now = asyncio.get_running_loop().time()
        due = list(self._waiting) if now >= self._polled_at + INTERVAL else []
        if due:
            self._polled_at = now
        tenant_ids = {ask.tenant_id for ask in (*asks, *due)}
        if not tenant_ids:
            return

        def read(session: Session) -> None:
            found = queries.find_jobs(
                session,
                job_ids=list({ask.job_id for ask in asks}),
                ended_ids=list({ask.job_id for ask in due}),
            )
            # Before the commit, which changes nothing: callers need not wait for Postgres to confirm it.
            self._resolve(asks, due, found)

        await self._transactions.run(read, tenant_ids=tenant_ids)

    def _resolve(self, asks: Sequence[_Ask], due: Sequence[_Ask], found: Mapping[UUID, Job]) -> None:
        for ask in asks:
            if ask.future.done():  # its caller left during the read
                continue
            job = _of_its_tenant(found, ask)
            if ask.waits and job is not None and job.finalized_at is None and not self._released:
                if not self._waiting and self._polled_at != _AT_ONCE:
                    self._polled_at = asyncio.get_running_loop().time()  # its row was read just now
                self._waiting.add(ask)
            else:
                _answer(ask, job)
        for ask in due:
            job = _of_its_tenant(found, ask)
            if job is not None and job.finalized_at is not None:
                self._waiting.discard(ask)
                _answer(ask, job)


def _of_its_tenant(found: Mapping[UUID, Job], ask: _Ask) -> Job | None:
    """Return the requested job unless it is another tenant's; tenants share a query."""
    job = found.get(ask.job_id)
    return job if job is not None and job.tenant_id == ask.tenant_id else None


def _answer(ask: _Ask, job: Job | None) -> None:
    if not ask.future.done():
        ask.future.set_result(job)


def _fail(asks: Sequence[_Ask], error: Exception) -> None:
    known = error if isinstance(error, LongbatchError) else UnavailableError()
    if known is not error:
        telemetry.logger().error(telemetry.LOOP_FAILED, loop="job-polling", error=type(error).__name__)
    for ask in asks:
        if not ask.future.done():
            ask.future.set_exception(known)
