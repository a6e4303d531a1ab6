"""Several choices of one request: each is a job, and all are answered, or fail, together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from api.completions import interactive
from api.completions.formats import AnswerFormat
from api.completions.interactive import Completion
from api.runtime.services import Services
from jobs.answers.choices import joined, joined_usage
from jobs.live_output import OutputPiece
from jobs.models import Job, JsonObject
from jobs.prompts.tools.frames import FrameReader
from jobs.states import JobState


async def until_all_ended(services: Services, jobs: Sequence[Job]) -> list[Completion]:
    """Wait for the choices to end, in their order.

    Returns:
        All of them; or only the first that did not complete, as the others are then in vain.

    Raises:
        UnavailableError: as `interactive.until_ended`.
    """
    waits = [
        asyncio.create_task(interactive.until_ended(services, job.id, tenant_id=job.tenant_id))
        for job in jobs
    ]
    try:
        for each in asyncio.as_completed(waits):
            ended = await each
            if ended.job.state != JobState.COMPLETED:
                return [ended]
        return [each.result() for each in waits]
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def follow_all(
    services: Services, jobs: Sequence[Job]
) -> AsyncGenerator[tuple[int, OutputPiece | Completion], None]:
    """Yield the output of all choices as it comes, each with its index, and their ends."""
    found: asyncio.Queue[tuple[int, OutputPiece | Completion] | Exception] = asyncio.Queue()

    async def pump(index: int, job: Job) -> None:
        try:
            async with aclosing(interactive.follow(services, job.id, tenant_id=job.tenant_id)) as updates:
                async for each in updates:
                    found.put_nowait((index, each))
        except Exception as error:  # noqa: BLE001  # raised by the reader
            found.put_nowait(error)

    pumps = [asyncio.create_task(pump(index, job)) for index, job in enumerate(jobs)]
    num_left = len(jobs)
    try:
        while num_left:
            each = await found.get()
            if isinstance(each, Exception):
                raise each
            num_left -= isinstance(each[1], Completion)
            yield each
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def whole(shape: AnswerFormat, ended: Sequence[Completion]) -> JsonObject:
    """Make the body of a request without `stream`."""
    bodies = [shape.whole(each) for each in ended]
    return joined(bodies) if len(bodies) > 1 else bodies[0]


class ChoiceChunks:
    """The chunks of a stream, each of one choice, under the id of the first."""

    def __init__(self, shape: AnswerFormat, jobs: Sequence[Job], *, include_usage: bool) -> None:
        self._shape = shape
        self._jobs = jobs
        self._include_usage = include_usage
        self._ended: dict[int, Completion] = {}
        self._readers = [FrameReader() for _ in jobs]

    @property
    def have_ended(self) -> bool:
        """True once all choices have."""
        return len(self._ended) == len(self._jobs)

    def first(self) -> list[JsonObject]:
        """Make the first chunks of all choices."""
        places = range(len(self._jobs))
        return [self._placed(index, each) for index in places for each in self._shape.first(self._jobs[0])]

    def of(self, index: int, new: OutputPiece | Completion) -> list[JsonObject]:
        """Make the chunks of a choice's new output, or of its end; after the last one those of the usage."""
        if isinstance(new, OutputPiece):
            return [
                self._placed(index, each)
                for each in self._shape.pieces(self._jobs[0], new, self._readers[index])
            ]
        self._ended[index] = new
        last = self._placed(index, self._shape.last(new))
        return [last, *self._usage()] if self.have_ended and self._include_usage else [last]

    def _usage(self) -> list[JsonObject]:
        """Make the chunk of token counts, if this format has one."""
        if (make := self._shape.usage) is None:
            return []
        chunks = [make(self._ended[index]) for index in range(len(self._jobs))]
        usages = [chunk["usage"] for chunk in chunks]
        return [chunks[0] | {"usage": joined_usage([each for each in usages if isinstance(each, dict)])}]

    def _placed(self, index: int, chunk: JsonObject) -> JsonObject:
        """Give a chunk its choice's index, and the id and time of the first."""
        choices = chunk.get("choices")
        if not index or not isinstance(choices, list):
            return chunk
        head = self._shape.text(self._jobs[0], "", None)
        return chunk | {
            "id": head["id"],
            "created": head["created"],
            "choices": [{**each, "index": index} for each in choices],
        }
