"""OpenAI's own client and responses, on the whole stack: waited for, polled, cancelled, told of."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from pytest_httpserver import HTTPServer

from cli.stack.stack import Stack
from jobs.webhooks.secrets import new_secret
from openai_support import MODEL
from support import eventually
from system_support import Gauges

pytestmark = pytest.mark.timeout(180)

ENGINE_MODE = "synthetic"
TIME_SCALE = 12.0
ASKED: Any = {"model": MODEL, "input": "Why is the sky blue? [[tokens=12]]", "max_output_tokens": 40}
LONG: Any = {"model": MODEL, "input": "Talk. [[tokens=100000]]", "max_output_tokens": 100_000}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
UNENDED = {"queued", "in_progress"}


@pytest.fixture
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as made:
        yield made


def ended(sdk: openai.OpenAI, response_id: str) -> Response:
    """The response once it has ended."""

    def found() -> Response | None:
        response = sdk.responses.retrieve(response_id)
        return None if response.status in UNENDED else response

    return eventually(found, interval=0.1)


def test_a_response_is_answered_and_can_be_retrieved(sdk: openai.OpenAI) -> None:
    answer = sdk.responses.create(**ASKED, instructions="Be brief.", metadata={"a": "b"})
    assert (answer.status, answer.object, answer.metadata) == ("completed", "response", {"a": "b"})
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens == 12
    assert answer.usage.total_tokens == answer.usage.input_tokens + 12
    Response.model_validate(answer.to_dict(), strict=True)
    assert sdk.responses.retrieve(answer.id) == answer
    assert [item.type for item in sdk.responses.input_items.list(answer.id)] == ["message"]


def test_an_answer_that_is_not_stored_is_gone(sdk: openai.OpenAI) -> None:
    answer = sdk.responses.create(**ASKED, store=False)
    assert answer.output_text
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(answer.id)


@pytest.mark.parametrize("tier", ["flex", "default", "priority"])
def test_a_response_in_the_background_is_polled_until_it_has_ended(sdk: openai.OpenAI, tier: Any) -> None:  # noqa: ANN401  # a literal
    made = sdk.responses.create(**ASKED, background=True, service_tier=tier)
    assert (made.status, made.service_tier) == ("queued", tier)
    found = ended(sdk, made.id)
    assert (found.status, found.service_tier) == ("completed", tier)
    assert found.output_text
    sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)


def test_a_running_response_is_cancelled_keeps_what_it_said_and_frees_the_engine(
    sdk: openai.OpenAI, gauges: Gauges
) -> None:
    made = sdk.responses.create(**LONG, background=True)
    eventually(lambda: sdk.responses.retrieve(made.id).status == "in_progress")
    eventually(lambda: gauges.read()["requests{active}"] == 1)
    assert sdk.responses.cancel(made.id).status == "cancelled"
    assert sdk.responses.retrieve(made.id).status == "cancelled"
    gauges.until_idle()


def test_a_cut_answer_is_incomplete(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(**(LONG | {"max_output_tokens": 5}), background=True)
    found = ended(sdk, made.id)
    assert (found.status, found.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]  # a message
    assert found.usage is not None
    assert found.usage.output_tokens == 5


def test_openai_s_client_unwraps_the_event_of_each_end(
    stack: Stack, sdk: openai.OpenAI, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/ended", method="POST").respond_with_data("thanks")
    secret = new_secret()
    to: dict[str, Any] = {
        "webhook_url": f"http://127.0.0.1:{httpserver.port}/ended",
        "webhook_secret": secret,
    }
    short = sdk.responses.create(**ASKED, background=True, extra_body=to)
    cut = sdk.responses.create(**(LONG | {"max_output_tokens": 5}), background=True, extra_body=to)
    stopped = sdk.responses.create(**LONG, background=True, extra_body=to)
    sdk.responses.cancel(stopped.id)
    eventually(lambda: len(httpserver.log) >= 3)
    told = {}
    for request, _ in httpserver.log:
        headers = {name.lower(): value for name, value in request.headers.items()}
        event: Any = sdk.webhooks.unwrap(request.get_data(), headers, secret=secret)
        assert request.json is not None
        assert set(request.json) == {"id", "object", "created_at", "type", "data"}
        told[event.data.id] = event.type
    assert told == {
        short.id: "response.completed",
        cut.id: "response.incomplete",
        stopped.id: "response.cancelled",
    }
    assert len(httpserver.log) == 3
    assert stack.urls.api_url


def test_the_calls_of_a_client_that_batches_by_itself_work(stack: Stack, sdk: openai.OpenAI) -> None:
    """It submits flex responses in the background, polls each, and cancels what it gives up."""

    async def run() -> None:
        base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:

            async def execute(number: int) -> Response:
                items: Any = [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "input_text", "text": f"{number} [[tokens=6]]"}]},
                ]
                response: Response = await client.responses.create(
                    model=MODEL,
                    input=items,
                    max_output_tokens=20,
                    text={"format": {"type": "text"}},
                    temperature=0,
                    extra_body={"seed": 1},
                    stream=False,
                    service_tier="flex",
                    background=True,
                )
                return await asyncio.to_thread(ended, sdk, response.id)

            answers = await asyncio.gather(*(execute(number) for number in range(8)))
            assert {answer.status for answer in answers} == {"completed"}
            assert all(answer.output_text for answer in answers)
            left = await client.responses.create(**LONG, service_tier="flex", background=True)
            assert (await client.responses.cancel(left.id)).status == "cancelled"

    asyncio.run(run())


class Person(BaseModel):
    """A form that an answer may have."""

    name: str


def test_requests_that_cannot_be_run_are_refused_as_openai_does(sdk: openai.OpenAI) -> None:
    def refused(**fields: Any) -> openai.BadRequestError:  # noqa: ANN401  # JSON
        with pytest.raises(openai.BadRequestError) as raised:
            sdk.responses.create(**(ASKED | fields))
        return raised.value

    assert refused(previous_response_id="resp_1").param == "previous_response_id"
    assert refused(temperature=3).param == "temperature"
    long = refused(max_output_tokens=131_072)
    assert (long.code, long.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.responses.create(model="gpt-9", input="Hello")
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as parsed:
        sdk.responses.parse(**ASKED, text_format=Person)
    assert parsed.value.param == "text.format"


def deltas_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_a_streamed_response_is_the_one_that_is_kept(sdk: openai.OpenAI) -> None:
    stream: Any = sdk.responses.create(**(ASKED | {"input": "Talk. [[tokens=30]]"}), stream=True)
    events: list[Any] = list(stream)
    for event in events:
        EVENT.validate_python(event.to_dict(), strict=True)
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert events[-1].type == "response.completed"
    final = events[-1].response
    assert deltas_of(events) == final.output_text
    assert len([event for event in events if event.type == "response.output_text.delta"]) > 3
    assert sdk.responses.retrieve(final.id) == final


def test_the_client_s_own_helper_puts_a_stream_together(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(**ASKED, store=False) as stream:
        for event in stream:
            assert event.type != "error"
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(final.id)


def test_a_reader_that_leaves_ends_a_response_of_the_foreground(sdk: openai.OpenAI, gauges: Gauges) -> None:
    stream: Any = sdk.responses.create(**LONG, stream=True)
    first = next(event for event in stream if event.type == "response.created")
    next(event for event in stream if event.type == "response.output_text.delta")
    stream.close()
    gauges.until_idle()
    eventually(lambda: sdk.responses.retrieve(first.response.id).status == "cancelled")


def test_a_reader_of_the_background_comes_back_where_it_left(sdk: openai.OpenAI) -> None:
    asked = ASKED | {"input": "Talk. [[tokens=400]]", "max_output_tokens": 500}
    stream: Any = sdk.responses.create(**asked, background=True, stream=True)
    seen: list[Any] = []
    for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta" and len(seen) > 8:
            break
    stream.close()
    assert [event.type for event in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    response_id = seen[0].response.id
    rest: list[Any] = list(
        sdk.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
    )
    final = rest[-1].response
    assert (rest[-1].type, final.id) == ("response.completed", response_id)
    assert deltas_of(seen + rest) == final.output_text
    numbers = [event.sequence_number for event in seen + rest]
    assert numbers == sorted(set(numbers))
    again: list[Any] = list(sdk.responses.retrieve(response_id, stream=True))
    assert deltas_of(again) == final.output_text
    assert [event.sequence_number for event in again if "delta" not in event.type] == [
        event.sequence_number for event in seen + rest if "delta" not in event.type
    ]


def test_a_stream_of_a_cancelled_response_ends_with_what_it_said(sdk: openai.OpenAI) -> None:
    stream: Any = sdk.responses.create(**LONG, background=True, stream=True)
    events: list[Any] = []
    for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta" and len(events) < 9:
            sdk.responses.cancel(events[0].response.id)
    assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")
    assert deltas_of(events) == events[-1].response.output_text


def test_a_stream_cannot_be_entered_in_the_middle_without_streaming(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(**ASKED, background=True)
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.responses.retrieve(made.id, starting_after=3)
    assert raised.value.param == "starting_after"
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.responses.retrieve(made.id, include=["reasoning.encrypted_content"])
    assert (raised.value.param or "").startswith("include")
    included = sdk.responses.retrieve(made.id, include=["message.output_text.logprobs"])
    assert included.id == made.id
