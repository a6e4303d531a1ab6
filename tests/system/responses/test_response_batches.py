"""Batches of responses by OpenAI's own client: each line's body is a whole response."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from cli.stack.stack import Stack
from openai_support import MODEL, ended, jsonl, results, run

pytestmark = pytest.mark.timeout(180)

ENGINE_MODE = "synthetic"
TIME_SCALE = 12.0
RESPONSES = "/v1/responses"


@pytest.fixture
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as made:
        yield made


def line(custom_id: str, **body: object) -> dict[str, Any]:
    asked = {"model": MODEL, "input": "Why? [[tokens=6]]", "max_output_tokens": 20}
    return {"custom_id": custom_id, "method": "POST", "url": RESPONSES, "body": asked | body}


def test_each_line_becomes_a_response_in_the_output_file(sdk: openai.OpenAI) -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "And the sea? [[tokens=6]]"}]}]
    lines = [
        line("a", metadata={"team": "sky"}, instructions="Be brief."),
        line("b", input=items, temperature=0.5),
        line("cut", input="Talk. [[tokens=60]]", max_output_tokens=5),
        line("hot", temperature=9),
        line("chained", previous_response_id="resp_1"),
        line("background", background=True),
        line("long", max_output_tokens=200_000),
        line("stranger", model="gpt-9"),
    ]
    batch = ended(sdk, run(sdk, jsonl(lines), endpoint=RESPONSES).id)
    assert (batch.status, batch.endpoint) == ("completed", RESPONSES)
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 5)
    output = {
        custom_id: Response.model_validate(found["response"]["body"], strict=True)
        for custom_id, found in results(sdk, batch.output_file_id).items()
    }
    assert {custom_id: found.status for custom_id, found in output.items()} == {
        "a": "completed",
        "b": "completed",
        "cut": "incomplete",
    }
    assert all(found.output_text and found.id.startswith("resp_") for found in output.values())
    first, second = output["a"], output["b"]
    assert (first.metadata, first.instructions, first.service_tier) == (
        {"team": "sky"},
        "Be brief.",
        "flex",
    )
    assert (second.temperature, second.instructions) == (0.5, None)
    used = [found.usage for found in output.values() if found.usage is not None]
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(each.output_tokens for each in used)
    errors = {
        custom_id: found["response"]["body"]["error"]
        for custom_id, found in results(sdk, batch.error_file_id).items()
    }
    assert {custom_id: (error["code"], error["param"]) for custom_id, error in errors.items()} == {
        "hot": ("invalid_value", "temperature"),
        "chained": ("unsupported_parameter", "previous_response_id"),
        "background": ("unsupported_parameter", "background"),
        "long": ("context_length_exceeded", "input"),
        "stranger": ("model_not_found", "model"),
    }
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(first.id)


def test_a_line_for_another_endpoint_refuses_the_batch(sdk: openai.OpenAI) -> None:
    batch = ended(sdk, run(sdk, jsonl([line("a")])).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [each.code for each in batch.errors.data or []] == ["url_mismatch"]


def test_a_batch_of_responses_can_be_estimated(sdk: openai.OpenAI) -> None:
    file = sdk.files.create(
        file=("in.jsonl", jsonl([line("a"), line("hot", temperature=9)])), purpose="batch"
    )
    asked = {"input_file_id": file.id, "endpoint": RESPONSES}
    found = sdk.post("/batches/estimate", body=asked, cast_to=object)
    assert isinstance(found, dict)
    assert (found["request_counts"]["runnable"], found["request_counts"]["refused"]) == (1, 1)
