"""Group commit of submissions: stores jobs that arrive together in one transaction.

A job alone costs a few round trips and a flush of Postgres' log to disk; fifty together cost the same. A
tenant has one transaction at a time, since two would wait for each other at its quota; what arrives meanwhile
forms the next one. So has a key with quotas of its own, which its tenant's others do not wait for.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from api.runtime.database import Transactions
from jobs import submission
from jobs.errors import UnavailableError
from jobs.models import Job
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec

# Transactions at a time, each of another tenant.
NUM_LANES: Final = 2
# Those of keys with quotas: each may wait for seconds for its key's lock.
NUM_LANES_OF_KEYS: Final = 4
_MAX_JOBS: Final = 100
_MAX_BYTES: Final = 4 * 2**20  # of compressed text in one transaction


@dataclass(eq=False, slots=True)
class _Entry:
    spec: JobSpec
    by: Submitter
    future: asyncio.Future[Job]


class GroupCommit:
    """Stores jobs for all requests; `run` must be running."""

    def __init__(
        self,
        transactions: Transactions,
        *,
        on_stored: Callable[[Sequence[Job]], object] = lambda _: None,
    ) -> None:
        """Set up without storing anything.

        Args:
            transactions: to the database.
            on_stored: called after each commit, before the callers go on; must be quick.
        """
        self._transactions = transactions
        self._on_stored = on_stored
        # By tenant, or by key if that has quotas, in the order of their turns.
        self._waiting: dict[UUID, deque[_Entry]] = {}
        self._storing: set[UUID] = set()
        self._changed = asyncio.Event()

    async def submit(self, spec: JobSpec, by: Submitter) -> Job:
        """Store the job and return it, committed.

        Raises:
            LimitError: its tenant's quota has no room for it.
            UnavailableError: the database does not answer; try again.
        """
        entry = _Entry(spec, by, asyncio.get_running_loop().create_future())
        owner_id = by.tenant_id if by.key_quota is None else by.key_quota.key_id
        self._waiting.setdefault(owner_id, deque()).append(entry)
        self._changed.set()
        return await entry.future

    async def run(self) -> None:
        """Store submissions as they arrive, until cancelled; several tasks may run this."""
        while True:
            owner_id = next((each for each in self._waiting if each not in self._storing), None)
            if owner_id is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            self._storing.add(owner_id)
            try:
                await self._store(self._take(owner_id))
            finally:
                self._storing.discard(owner_id)
                self._changed.set()

    def _take(self, owner_id: UUID) -> list[_Entry]:
        """Take the owner's next entries, in order of arrival; what is left waits for its next turn."""
        waiting = self._waiting.pop(owner_id)
        key_quota = waiting[0].by.key_quota
        taken: list[_Entry] = []
        num_bytes = 0
        # A key's quotas may have changed between two of its requests.
        while waiting and waiting[0].by.key_quota == key_quota and len(taken) < _MAX_JOBS:
            num_bytes += sum(len(text.packed) for text in waiting[0].spec.texts)
            if taken and num_bytes > _MAX_BYTES:
                break
            taken.append(waiting.popleft())
        if waiting:
            self._waiting[owner_id] = waiting
        return taken

    async def _store(self, together: list[_Entry]) -> None:
        keys = {entry.by.api_key_id for entry in together}
        by = replace(together[0].by, trace=None, api_key_id=keys.pop() if len(keys) == 1 else None)
        specs = [_marked(each, by) for each in together]
        try:
            submit = functools.partial(submission.submit, specs=specs, by=by)
            jobs = await self._transactions.run(submit, tenant_ids=[by.tenant_id])
        except Exception as error:  # noqa: BLE001  # any error goes to the waiting callers
            await self._store_apart(together, error)
            return
        for entry, job in zip(together, jobs, strict=True):
            if not entry.future.done():
                entry.future.set_result(job)
        self._on_stored(jobs)  # callers go on only in the event loop's next turn

    async def _store_apart(self, together: list[_Entry], error: Exception) -> None:
        """Store each job by itself, so that one failure does not fail the others."""
        if len(together) > 1 and not isinstance(error, UnavailableError):
            for entry in together:
                await self._store([entry])
            return
        for entry in together:
            if not entry.future.done():
                entry.future.set_exception(error)


def _marked(entry: _Entry, by: Submitter) -> JobSpec:
    """Return the job with its own trace and key, unless it has what all of its transaction have."""
    own = entry.by
    if own.trace is None and own.api_key_id == by.api_key_id:
        return entry.spec
    traceparent = entry.spec.traceparent if own.trace is None else own.trace.of(0, among=1)
    return replace(entry.spec, traceparent=traceparent, api_key_id=own.api_key_id)
