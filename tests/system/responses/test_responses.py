"""OpenAI's own client and responses, on the whole stack: waited for, polled, cancelled, told of."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel
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


def test_the_calls_of_a_client_that_batches_by_itself_work(stack: Stack) -> None:
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
                while response.status in UNENDED:
                    await asyncio.sleep(0.1)
                    response = await client.responses.retrieve(response.id)
                return response

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
