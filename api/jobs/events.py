"""Server-sent events of a job, which a reader can resume where it left off.

Events carry `id: N`, the characters of output sent so far, thinking included. After a break the reader sends
it back as `Last-Event-ID` and gets the current state, then the text after it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar

from api.http.sse import HEARTBEAT, event, merged
from api.runtime.services import Services
from jobs import queries
from jobs.live_output import Delta, OutputPiece
from jobs.models import Job
from jobs.queries import JobStatus
from jobs.states import TERMINAL
from jobs.views import job_object

T = TypeVar("T")
# Shortest interval between two `progress` events.
_PROGRESS_SECONDS: Final = 0.5


class JobEvents:
    """One reader of one job's events."""

    def __init__(self, services: Services, job: Job, *, text: bool, num_sent: int) -> None:
        """Args: text: send new thinking and text too; num_sent: characters that the reader already has."""
        self._services = services
        self._job = job
        self._wants_text = text
        self._num_sent = num_sent
        self._reported_tokens = -1
        self._reported_at = float("-inf")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield events until the job ends."""
        yield self._state()
        had_ended = self._job.state in TERMINAL
        if not had_ended:
            async with aclosing(self._until_ended()) as events:
                async for each in events:
                    yield each
        if self._wants_text:
            for each in await self._rest():
                yield each
        if not had_ended and self._job.state in TERMINAL:
            yield self._state()

    async def _until_ended(self) -> AsyncGenerator[bytes, None]:
        rows: AsyncIterator[JobStatus | Delta] = self._services.job_changes.changes(self._job.id)
        deltas: AsyncIterator[JobStatus | Delta] = self._services.live.deltas(self._job.id)
        async with aclosing(merged(rows, deltas)) as changes:
            async for change in changes:
                if change is None:
                    yield HEARTBEAT
                elif isinstance(change, Delta):
                    for each in self._of_delta(change):
                        yield each
                    if change.is_last and await self._has_ended():
                        return
                elif change.state != self._job.state or change.cancel_requested:
                    if await self._has_ended():
                        return
                    yield self._state()
                elif progress := self._progress(change.completion_tokens):
                    yield progress

    def _of_delta(self, delta: Delta) -> list[bytes]:
        events = self._of_output(delta.after(self._num_sent)) if self._wants_text else []
        if progress := self._progress(delta.num_tokens):
            events.append(progress)
        return events

    def _of_output(self, new: OutputPiece) -> list[bytes]:
        events = []
        for name, text in (("reasoning", new.reasoning), ("text", new.text)):
            if text:
                self._num_sent += len(text)
                events.append(self._event(name, {"text": text}))
        return events

    def _progress(self, num_tokens: int) -> bytes | None:
        now = asyncio.get_running_loop().time()
        if num_tokens <= self._reported_tokens or now - self._reported_at < _PROGRESS_SECONDS:
            return None
        self._reported_tokens, self._reported_at = num_tokens, now
        return self._event("progress", {"completion_tokens": num_tokens, "max_tokens": self._job.max_tokens})

    def _state(self) -> bytes:
        self._reported_tokens = max(self._reported_tokens, self._job.completion_tokens)
        return self._event("job", job_object(self._job))

    def _event(self, name: str, fields: Any) -> bytes:  # noqa: ANN401  # JSON
        return event(name, fields, identifier=self._num_sent)

    async def _has_ended(self) -> bool:
        found = await self._services.poller.now(self._job.id, tenant_id=self._job.tenant_id)
        self._job = found or self._job
        return found is None or found.state in TERMINAL

    async def _rest(self) -> list[bytes]:
        read = partial(queries.get_result, job_id=self._job.id)
        result = await self._services.transactions.run(read, tenant_ids=[self._job.tenant_id])
        if result is None:
            return []
        return self._of_output(OutputPiece(result.reasoning or "", result.output).after(self._num_sent))
