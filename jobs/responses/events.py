"""The events of a response's stream, numbered so that a reader can go on after any of them.

A number counts what came before it: one for each event that opens, closes or ends something, and one for each
character. So an event's number does not depend on how the output arrived, in many deltas or from the result
at once; a reader that left after some number gets what follows it, each character once.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from jobs.database.base import JsonObject
from jobs.live_output import OutputPiece
from jobs.responses.objects import (
    ResponseOutput,
    ResponseState,
    message_id,
    message_item,
    reasoning_id,
    reasoning_item,
    response_object,
    text_part,
)
from jobs.states import JobState

_REASONING: Final = "reasoning"
_MESSAGE: Final = "message"
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
        self._open: str | None = None  # the kind of the item that grows
        self._num_items = 0
        self._text = {_REASONING: "", _MESSAGE: ""}

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
        for kind, text in ((_REASONING, new.reasoning), (_MESSAGE, new.text)):
            if text:
                yield from self._opened(kind)
                yield from self._delta(kind, text)

    def ended(self, state: ResponseState, output: ResponseOutput) -> Iterator[JsonObject]:
        """Write the end of the response; its output was written before."""
        yield from self.begun()
        is_whole = state.status == "completed"
        if state.state == JobState.COMPLETED and self._open != _MESSAGE:
            yield from self._opened(_MESSAGE)
        yield from self._closed(is_whole=is_whole)
        shown = response_object(state, self._repeated, output)
        yield from self._event(_LAST[state.status], response=shown)

    def _opened(self, kind: str) -> Iterator[JsonObject]:
        if self._open == kind:
            return
        yield from self._closed(is_whole=True)
        self._open = kind
        item = {**self._item(is_whole=False), "status": "in_progress", "content": []}
        yield from self._event("response.output_item.added", output_index=self._num_items, item=item)
        yield from self._event("response.content_part.added", **self._place(), part=self._part(""))

    def _delta(self, kind: str, text: str) -> Iterator[JsonObject]:
        """Write the characters that the reader does not have; the number is that of the last one."""
        self._text[kind] += text
        num_known = min(len(text), max(0, self._after + 1 - self._next))
        self._next += len(text) - 1
        delta = self._place() | {"delta": text[num_known:]}
        if kind == _MESSAGE:
            delta["logprobs"] = []
        yield from self._event(f"{_TEXT_OF[kind]}.delta", **delta)

    def _closed(self, *, is_whole: bool) -> Iterator[JsonObject]:
        kind = self._open
        if kind is None:
            return
        text, place = self._text[kind], self._place()
        done = place | {"text": text}
        if kind == _MESSAGE:
            done["logprobs"] = []
        yield from self._event(f"{_TEXT_OF[kind]}.done", **done)
        yield from self._event("response.content_part.done", **place, part=self._part(text))
        item = self._item(is_whole=is_whole)
        yield from self._event("response.output_item.done", output_index=self._num_items, item=item)
        self._num_items += 1
        self._open = None

    def _place(self) -> JsonObject:
        name = reasoning_id if self._open == _REASONING else message_id
        return {"item_id": name(self._state.id), "output_index": self._num_items, "content_index": 0}

    def _item(self, *, is_whole: bool) -> JsonObject:
        make = reasoning_item if self._open == _REASONING else message_item
        return make(self._state.id, self._text[self._open or _MESSAGE], is_whole=is_whole)

    def _part(self, text: str) -> JsonObject:
        return {"type": "reasoning_text", "text": text} if self._open == _REASONING else text_part(text)

    def _response(self, state: JobState) -> JsonObject:
        return response_object(self._state.moved(state), self._repeated)

    def _event(self, kind: str, **fields: object) -> Iterator[JsonObject]:
        """Write an event with its number, unless the reader has it."""
        number = self._next
        self._next += 1
        if number > self._after:
            yield {"type": kind, "sequence_number": number, **fields}


_TEXT_OF: Final = {_REASONING: "response.reasoning_text", _MESSAGE: "response.output_text"}
