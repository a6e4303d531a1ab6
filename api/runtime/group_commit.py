"""Group commit of submissions: stores jobs that arrive together in one transaction.

A job alone costs half a dozen round trips and a flush of Postgres' log to disk; fifty together cost the same.
No submission waits for others: a transaction starts at once when fewer than two are in flight, and jobs that
arrive meanwhile form the next one.
"""

import asyncio
import functools
from dataclasses import dataclass
from typing import Final

from api.runtime.database import Transactions
from jobs import submission
from jobs.errors import UnavailableError
from jobs.models import Job
from jobs.submission import JobSpec, Submitter

# One transaction is being flushed to disk while the next is being filled.
NUM_LANES: Final = 2
_MAX_JOBS: Final = 100
_MAX_BYTES: Final = 4 * 2**20  # of compressed text in one transaction


@dataclass(eq=False, slots=True)
class _Entry:
    spec: JobSpec
    by: Submitter
    future: asyncio.Future[Job]


class GroupCommit:
    """Stores jobs for all requests; `run` must be running."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._waiting: list[_Entry] = []
        self._arrived = asyncio.Event()

    async def submit(self, spec: JobSpec, by: Submitter) -> Job:
        """Store the job and return it, committed.

        Raises:
            LimitError: its tenant's quota has no room for it.
            UnavailableError: the database does not answer; try again.
        """
        entry = _Entry(spec, by, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        self._arrived.set()
        return await entry.future

    async def run(self) -> None:
        """Store submissions as they arrive, until cancelled; several tasks may run this."""
        while True:
            await self._arrived.wait()
            together = self._take()
            if not self._waiting:
                self._arrived.clear()
            await self._store(together)

    def _take(self) -> list[_Entry]:
        """Take the next entries of one tenant, in order of arrival."""
        taken: list[_Entry] = []
        num_bytes = 0
        for entry in self._waiting[:_MAX_JOBS]:
            num_bytes += len(entry.spec.text.packed)
            if taken and (num_bytes > _MAX_BYTES or entry.by.tenant_id != taken[0].by.tenant_id):
                break
            taken.append(entry)
        del self._waiting[: len(taken)]
        return taken

    async def _store(self, together: list[_Entry]) -> None:
        if not together:
            return
        by = together[0].by
        submit = functools.partial(submission.submit, specs=[entry.spec for entry in together], by=by)
        try:
            jobs = await self._transactions.run(submit, tenant_ids=[by.tenant_id])
        except Exception as error:  # noqa: BLE001  # any error goes to the waiting callers
            await self._store_apart(together, error)
            return
        for entry, job in zip(together, jobs, strict=True):
            if not entry.future.done():
                entry.future.set_result(job)

    async def _store_apart(self, together: list[_Entry], error: Exception) -> None:
        """Store each job by itself, so that one failure does not fail the others."""
        if len(together) > 1 and not isinstance(error, UnavailableError):
            for entry in together:
                await self._store([entry])
            return
        for entry in together:
            if not entry.future.done():
                entry.future.set_exception(error)
