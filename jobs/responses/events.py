"""The events of a response's stream, numbered so that a reader can go on after any of them.

A number counts what came before it: one for each event that opens, closes or ends something, and one for each
character. So an event's number does not depend on how the output arrived, in many deltas or from the result
at once; a reader that left after some number gets what follows it, each character once.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from jobs.database.base import JsonObject
from jobs.live_output import OutputPiece
from jobs.responses.objects import ResponseOutput, ResponseState, response_object
from jobs.responses.output import (
    CALL,
    MESSAGE,
    REASONING,
    ItemWriter,
    OutputItem,
    OutputReader,
    Part,
    kind_of,
    scores_of,
    text_of,
)
from jobs.states import JobState

# What the events of an item's text are named after.
_TEXTS: Final = {
    REASONING: "response.reasoning_text",
    MESSAGE: "response.output_text",
    CALL: "response.function_call_arguments",
}
# How the last event tells of each status. OpenAI has no event of a cancelled response: its status tells.
_LAST: Final = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


class ResponseEvents:
    """Writes the events of one response for one reader."""

    def __init__(
        self, state: ResponseState, repeated: Mapping[str, object], *, is_background: bool, after: int = -1
    ) -> None:
        """Prepare the events.

        Args:
            state: of the job when it was submitted.
            repeated: the parameters of its request.
            is_background: it is first queued.
            after: number of the last event that the reader has; -1: none.
        """
        self._state = state
        self._repeated = repeated
        self._is_background = is_background
        self._after = after
        self._next = 0
        self._has_begun = False
        self._reader = OutputReader()
        self._items = ItemWriter(state.id)
        self._num_items = 0
        self._scores: list[tuple[int, JsonObject]] = []  # not sent yet, each with its place in the text

    def submitted(self) -> Iterator[JsonObject]:
        """Write that the response was created and, in the background, that it waits."""
        first = JobState.QUEUED if self._is_background else JobState.RUNNING
        yield from self._event("response.created", response=self._response(first))
        if self._is_background:
            yield from self._event("response.queued", response=self._response(first))
        else:
            yield from self.begun()

    def begun(self) -> Iterator[JsonObject]:
        """Write that the response is being generated; once."""
        if not self._has_begun:
            self._has_begun = True
            yield from self._event("response.in_progress", response=self._response(JobState.RUNNING))

    def grown(self, new: OutputPiece) -> Iterator[JsonObject]:
        """Write new output."""
        yield from self.begun()
        if new.log_probs is not None:
            self._scores += zip(new.log_probs.offsets, scores_of(new.log_probs), strict=True)
        for part in self._reader.read(new):
            if not self._items.fits(part):
                yield from self._closed(is_whole=True)
                yield from self._opened(kind_of(part), getattr(part, "name", None) or "")
            yield from self._delta(part)

    def ended(self, state: ResponseState, output: ResponseOutput) -> Iterator[JsonObject]:
        """Write the end of the response; its output was written before."""
        yield from self.begun()
        if state.state == JobState.COMPLETED and self._items.needs_message:
            yield from self._closed(is_whole=True)
            yield from self._opened(MESSAGE)
        yield from self._closed(is_whole=state.status == "completed")
        shown = response_object(state, self._repeated, output)
        yield from self._event(_LAST[state.status], response=shown)

    def _opened(self, kind: str, name: str = "") -> Iterator[JsonObject]:
        item = self._items.begin(kind, name)
        place = {"output_index": self._num_items}
        yield from self._event("response.output_item.added", **place, item=item.begun())
        if kind != CALL:
            yield from self._event("response.content_part.added", **self._place(item), part=item.part)

    def _delta(self, part: Part) -> Iterator[JsonObject]:
        """Write the characters that the reader does not have; the number is that of the last one."""
        item, text = self._items.open, text_of(part)
        if item is None or not text:
            return
        begin = self._items.grow(text)
        num_known = min(len(text), max(0, self._after + 1 - self._next))
        self._next += len(text) - 1
        delta = self._place(item) | {"delta": text[num_known:]}
        if item.kind == MESSAGE:
            new = begin + num_known if num_known else 0
            delta["logprobs"] = [each for place, each in self._take_scores() if place >= new]
        yield from self._event(f"{_TEXTS[item.kind]}.delta", **delta)

    def _take_scores(self) -> list[tuple[int, JsonObject]]:
        """Add the scores that came to the message that grows, and return them."""
        taken, self._scores = self._scores, []
        self._items.score([each for _, each in taken])
        return taken

    def _closed(self, *, is_whole: bool) -> Iterator[JsonObject]:
        if self._items.open is not None and self._items.open.kind == MESSAGE:
            self._take_scores()
        item = self._items.close(is_whole=is_whole)
        if item is None:
            return
        place = self._place(item)
        if item.kind == CALL:
            done: JsonObject = {"name": item.name, "arguments": item.text}
            yield from self._event(f"{_TEXTS[CALL]}.done", **place, **done)
        else:
            done = {"text": item.text}
            if item.kind == MESSAGE:
                done["logprobs"] = list(item.log_probs)
            yield from self._event(f"{_TEXTS[item.kind]}.done", **place, **done)
            yield from self._event("response.content_part.done", **place, part=item.part)
        number = self._num_items
        yield from self._event("response.output_item.done", output_index=number, item=item.as_object())
        self._num_items += 1

    def _place(self, item: OutputItem) -> JsonObject:
        place: JsonObject = {"item_id": item.id, "output_index": self._num_items}
        return place if item.kind == CALL else place | {"content_index": 0}

    def _response(self, state: JobState) -> JsonObject:
        return response_object(self._state.moved(state), self._repeated)

    def _event(self, kind: str, **fields: object) -> Iterator[JsonObject]:
        """Write an event with its number, unless the reader has it."""
        number = self._next
        self._next += 1
        if number > self._after:
            yield {"type": kind, "sequence_number": number, **fields}
