"""Server-sent events of a job, which a reader can resume where it left off.

Events carry `id: N`, the characters of output sent so far, thinking and calls included; within a call, and
after one, it names the call, too. After a break the reader sends it back as `Last-Event-ID` and gets the
current state, then what comes after it.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from api.http.sse import HEARTBEAT, event, merged
from api.runtime.services import Services
from jobs import queries
from jobs.live_output import Delta, OutputPiece
from jobs.models import Job
from jobs.prompts.tools.calls import read_calls
from jobs.prompts.tools.frames import CallPart, FrameReader, call_piece, framed
from jobs.queries import JobStatus
from jobs.states import TERMINAL
from jobs.views import job_object

T = TypeVar("T")
# Shortest interval between two `progress` events.
_PROGRESS_SECONDS: Final = 0.5
_PLACE: Final = re.compile(r"([0-9]{1,18})(?:([ct])([0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader has come.

    Attributes:
        num_sent: characters that it has.
        index: of the last call that has begun; -1: none.
        is_in_call: it goes on within that call.
    """

    num_sent: int = 0
    index: int = -1
    is_in_call: bool = False

    def written(self) -> str:
        """Write it as the id of an event."""
        kind = "" if self.index < 0 else f"{'c' if self.is_in_call else 't'}{self.index}"
        return f"{self.num_sent}{kind}"

    @classmethod
    def read(cls, written: str) -> "Place":
        """Read the id of an event; what is none is the beginning."""
        found = _PLACE.fullmatch(written)
        if found is None:
            return cls()
        return cls(int(found[1]), -1 if found[3] is None else int(found[3]), found[2] == "c")


class JobEvents:
    """One reader of one job's events."""

    def __init__(self, services: Services, job: Job, *, text: bool, place: Place) -> None:
        """Args: text: send new thinking, text and calls too; place: how far the reader has come."""
        self._services = services
        self._job = job
        self._wants_text = text
        self._num_sent = place.num_sent
        self._reader = FrameReader(index=place.index, is_in_call=place.is_in_call)
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
        """Make the events of new output, each with the place after it."""
        end, events = self._num_sent + new.num_chars, []
        if new.reasoning:
            self._num_sent += len(new.reasoning)
            events.append(self._event("reasoning", {"text": new.reasoning}))
        index, was_in_call = self._reader.index, self._reader.is_in_call
        parts = self._reader.push(new.text)
        for number, part in enumerate(parts, 1):
            is_call = isinstance(part, CallPart)
            if isinstance(part, CallPart):
                index = part.index
                size, shown = len(part.framed()), ("tool_call", call_piece(part, self._job.id))
            else:
                size, shown = len(part.text) + was_in_call, ("text", {"text": part.text})
            self._num_sent, was_in_call = self._num_sent + size, is_call
            num_sent = end if number == len(parts) else self._num_sent
            events.append(event(*shown, identifier=Place(num_sent, index, is_call).written()))
        self._num_sent = end
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
        place = Place(self._num_sent, self._reader.index, self._reader.is_in_call)
        return event(name, fields, identifier=place.written())

    async def _has_ended(self) -> bool:
        found = await self._services.poller.now(self._job.id, tenant_id=self._job.tenant_id)
        self._job = found or self._job
        return found is None or found.state in TERMINAL

    async def _rest(self) -> list[bytes]:
        read = partial(queries.get_result, job_id=self._job.id)
        result = await self._services.transactions.run(read, tenant_ids=[self._job.tenant_id])
        if result is None:
            return []
        visible = framed(result.output, read_calls(result.tool_calls))
        return self._of_output(OutputPiece(result.reasoning or "", visible).after(self._num_sent))
