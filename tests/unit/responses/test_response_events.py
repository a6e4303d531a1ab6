"""The events of a response: of OpenAI's own types, the same however the output comes, and resumed."""

from collections import defaultdict
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from jobs.live_output import OutputPiece
from jobs.prompts.tools.frames import ARGUMENTS, CALL, TEXT
from jobs.responses import requests
from jobs.responses.events import ResponseEvents
from jobs.responses.objects import ResponseOutput, ResponseState
from jobs.states import JobState

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
NOW = datetime(2026, 1, 31, tzinfo=UTC)
QUEUED = ResponseState(UUID(int=1), JobState.QUEUED, "m", {"a": "b"}, NOW)
REPEATED = requests.validate({"model": "m", "input": "Hello", "instructions": "Be brief."}).repeated
ONE_CALL = f'{CALL}weather{ARGUMENTS}{{"city": "Oslo"}}'
ENDS = {
    "completed": (JobState.COMPLETED, "stop", None),
    "incomplete": (JobState.COMPLETED, "length", None),
    "failed": (JobState.FAILED, None, {"code": "engine_error", "message": "it broke"}),
    "cancelled": (JobState.CANCELLED, None, None),
}


def state_of(status: str) -> ResponseState:
    state, reason, error = ENDS[status]
    return ResponseState(
        QUEUED.id,
        state,
        "m",
        {"a": "b"},
        NOW,
        finalized_at=NOW,
        finish_reason=reason,
        error=error,  # type: ignore[arg-type]  # JSON
        prompt_tokens=3,
        completion_tokens=5,
    )


def cut(text: str, places: list[int]) -> list[str]:
    """The text in pieces that end at these places."""
    ends = sorted({place for place in places if place < len(text)} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def written(
    reasoning: list[str],
    text: list[str],
    *,
    status: str = "completed",
    after: int = -1,
    is_background: bool = True,
) -> list[dict[str, Any]]:
    """The events that a reader gets after that one, if the output came in these pieces."""
    writer = ResponseEvents(QUEUED, REPEATED, is_background=is_background, after=after)
    pieces = [OutputPiece(each, "") for each in reasoning] + [OutputPiece("", each) for each in text]
    found = [*writer.submitted()]
    for piece in pieces:
        found += writer.grown(piece)
    output = ResponseOutput(OutputPiece("".join(reasoning), "".join(text)), 2)
    return [*found, *writer.ended(state_of(status), output)]


@pytest.mark.parametrize("status", ENDS)
@pytest.mark.parametrize("reasoning", ["", "Let me see."])
@pytest.mark.parametrize(
    "text", ["", "Blue.", ONE_CALL, f"Well. {ONE_CALL}{CALL}b{ARGUMENTS}", f"{ONE_CALL}{TEXT}So."]
)
def test_every_event_is_of_openai_s_types_and_their_order(status: str, reasoning: str, text: str) -> None:
    events = written(cut(reasoning, [3]), cut(text, [2]), status=status)
    for event in events:
        parsed = EVENT.validate_python(event, strict=True)
        assert parsed.type == event["type"]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:3] == ["created", "queued", "in_progress"]
    assert kinds[-1] == {"cancelled": "incomplete"}.get(status, status)
    final = events[-1]["response"]
    Response.model_validate(final, strict=True)
    assert final["status"] == status
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]


def test_the_deltas_of_an_item_are_its_text() -> None:
    events = written(["Let ", "me"], ["Bl", "ue"])
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        *("created", "queued", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    for name, index in (("reasoning_text", 0), ("output_text", 1)):
        deltas = [each for each in events if each["type"] == f"response.{name}.delta"]
        (done,) = [each for each in events if each["type"] == f"response.{name}.done"]
        assert "".join(each["delta"] for each in deltas) == done["text"]
        assert {(each["output_index"], each["item_id"]) for each in [*deltas, done]} == {
            (index, done["item_id"])
        }


def test_calls_are_items_of_their_own() -> None:
    events = written([], cut(f"Well. {ONE_CALL}{CALL}b{ARGUMENTS}{{}}", [3, 9, 20]))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[3:] == [
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    message, first, second = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == "Well. "
    assert (first["name"], first["arguments"]) == ("weather", '{"city": "Oslo"}')
    assert (second["name"], second["arguments"]) == ("b", "{}")
    assert len({first["call_id"], second["call_id"], first["id"], second["id"]}) == 4
    deltas = [each for each in events if each["type"].endswith("arguments.delta")]
    assert "".join(each["delta"] for each in deltas if each["item_id"] == first["id"]) == first["arguments"]


def test_a_response_whose_caller_waits_is_not_queued() -> None:
    kinds = [event["type"] for event in written([], ["a"], is_background=False)]
    assert kinds[:2] == ["response.created", "response.in_progress"]


places = st.lists(st.integers(0, 12), max_size=4)


@given(
    reasoning=st.text(max_size=9),
    text=st.lists(st.sampled_from(["a", "bc", "{}", f"{CALL}f{ARGUMENTS}", TEXT]), max_size=6).map("".join),
    first=st.tuples(places, places),
    second=st.tuples(places, places),
    left_at=st.integers(0, 40),
    status=st.sampled_from(sorted(ENDS)),
)
def test_a_reader_that_comes_back_gets_what_it_lacks_once_however_the_output_came(
    reasoning: str,
    text: str,
    first: tuple[list[int], list[int]],
    second: tuple[list[int], list[int]],
    left_at: int,
    status: str,
) -> None:
    before = written(cut(reasoning, first[0]), cut(text, first[1]), status=status)
    seen = before[: left_at % len(before) + 1]
    after = seen[-1]["sequence_number"]
    rest = written(cut(reasoning, second[0]), cut(text, second[1]), status=status, after=after)
    together = [*seen, *rest]
    numbers = [event["sequence_number"] for event in together]
    assert numbers == sorted(set(numbers))
    said: dict[str, str] = defaultdict(str)
    for event in together:
        if event["type"].endswith(".delta"):
            said[event["item_id"]] += event["delta"]
    for item in together[-1]["response"]["output"]:
        assert said[item["id"]] == (item["arguments"] if "arguments" in item else item["content"][0]["text"])

    def others(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for event in events if not event["type"].endswith("delta")]

    assert others(together) == others(before)
    assert [*accumulate(numbers, max)] == numbers
