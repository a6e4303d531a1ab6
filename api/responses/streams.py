"""Responses as server-sent events, from their beginning or from where a reader left off."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from pydantic_core import to_json

from api.completions import interactive
from api.completions.interactive import Completion
from api.http.sse import HEARTBEAT, error_event, merged
from api.runtime.services import Services
from jobs.errors import LongbatchError
from jobs.live_output import OutputPiece
from jobs.models import Job, JsonObject
from jobs.queries import JobStatus
from jobs.responses.events import ResponseEvents
from jobs.responses.objects import ResponseOutput, ResponseState
from jobs.states import JobState


@dataclass(slots=True)
class ResponseStream:
    """The events of a response for one reader.

    Attributes:
        job: that generates the response.
        repeated: the parameters of its request.
        is_background: it goes on without readers.
        after: number of the last event that the reader has; -1: none.
        has_ended: the response has, and all of its events were sent.
    """

    services: Services
    job: Job
    repeated: JsonObject
    is_background: bool
    after: int = -1
    has_ended: bool = field(default=False, init=False)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the events until the response has ended; an error of ours ends them early."""
        state = ResponseState.of(self.job)
        writer = ResponseEvents(state, self.repeated, is_background=self.is_background, after=self.after)
        for event in _encoded(writer.submitted()):
            yield event
        try:
            async with aclosing(merged(*self._sources())) as changes:
                async for change in changes:
                    if change is None:
                        yield HEARTBEAT
                        continue
                    for event in _encoded(_written(writer, change)):
                        yield event
                    if isinstance(change, Completion):
                        self.has_ended = True
                        return
        except LongbatchError as error:
            yield error_event(error)

    def _sources(self) -> list[AsyncIterator[JobStatus | OutputPiece | Completion]]:
        tenant_id = self.job.tenant_id
        output: AsyncIterator[JobStatus | OutputPiece | Completion]
        output = interactive.follow(self.services, self.job.id, tenant_id=tenant_id)
        if not self.is_background:
            return [output]
        # Tells of the start, which may be long before the first token.
        return [output, self.services.job_changes.changes(self.job.id)]


def _written(writer: ResponseEvents, change: JobStatus | OutputPiece | Completion) -> Iterable[JsonObject]:
    if isinstance(change, Completion):
        output = ResponseOutput(change.output, change.reasoning_tokens)
        return writer.ended(ResponseState.of(change.job), output)
    if isinstance(change, OutputPiece):
        return writer.grown(change)
    return writer.begun() if change.state == JobState.RUNNING else ()


def _encoded(events: Iterable[JsonObject]) -> list[bytes]:
    return [b"event: %s\ndata: %s\n\n" % (str(each["type"]).encode(), to_json(each)) for each in events]
