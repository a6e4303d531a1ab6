"""Several choices of one request (`n`), by OpenAI's own client over real llama.cpp."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from cli.stack.stack import Stack
from openai_support import ended, jsonl, results, run
from system_support import Client

pytestmark = pytest.mark.timeout(400)

ENGINE_MODE = "llama"
MODEL = "SmolLM2-135M-Instruct.Q4_1"
ASKED: list[Any] = [{"role": "user", "content": "Tell me a story about the sea."}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": ASKED, "max_tokens": 16}


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as found:
        yield found


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=120) as found:
        yield found


def test_a_chat_has_as_many_choices_as_are_asked_for(sdk: openai.OpenAI) -> None:
    found = sdk.chat.completions.create(**CHAT, n=3, temperature=1.5, seed=7)
    assert [each.index for each in found.choices] == [0, 1, 2]
    texts = [each.message.content for each in found.choices]
    assert len(set(texts)) == 3, "each draws for itself"
    one = sdk.chat.completions.create(**CHAT, temperature=1.5, seed=7)
    assert found.usage is not None
    assert one.usage is not None
    assert found.usage.prompt_tokens == one.usage.prompt_tokens, "all share it"
    assert found.usage.completion_tokens == 3 * 16
    assert found.usage.total_tokens == found.usage.prompt_tokens + 3 * 16


def test_at_temperature_0_all_choices_are_the_same(sdk: openai.OpenAI) -> None:
    found = sdk.completions.create(model=MODEL, prompt="One and one is", max_tokens=1, n=2, temperature=0)
    assert [each.index for each in found.choices] == [0, 1]
    assert len({each.text for each in found.choices}) == 1


@pytest.mark.parametrize("num_top", [None, 1])
def test_choices_are_streamed_with_their_indexes(sdk: openai.OpenAI, num_top: int | None) -> None:
    scored: Any = {} if num_top is None else {"logprobs": True, "top_logprobs": num_top}
    stream = sdk.chat.completions.create(
        **CHAT, **scored, n=2, temperature=1.5, seed=7, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({each.id for each in chunks}) == len({each.created for each in chunks}) == 1
    *answer, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 2 * 16
    for index in (0, 1):
        mine = [each.choices[0] for each in answer if each.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert [each.finish_reason for each in mine if each.finish_reason] == ["length"]
        text = "".join(each.delta.content or "" for each in mine)
        assert text
        tokens = [token for each in mine if each.logprobs for token in each.logprobs.content or []]
        assert len(tokens) == (0 if num_top is None else 16)


def test_a_text_completion_streams_them_too(sdk: openai.OpenAI) -> None:
    stream = sdk.completions.create(
        model=MODEL, prompt="Once upon", max_tokens=6, n=2, temperature=1.0, stream=True
    )
    found = {0: "", 1: ""}
    for chunk in stream:
        found[chunk.choices[0].index] += chunk.choices[0].text
    assert all(found.values())


def test_choices_are_jobs_that_leave_together(sdk: openai.OpenAI, client: Client) -> None:
    stream = sdk.chat.completions.create(**CHAT | {"max_tokens": 1500}, n=2, temperature=1.0, stream=True)
    next(iter(stream))
    running = client.http.get("/v1/jobs", params={"limit": 2}).json()["data"]
    assert {each["state"] for each in running} <= {"queued", "running"}
    stream.close()
    for each in running:
        assert client.finished(each["id"], timeout=60)["state"] == "cancelled"


def test_more_choices_than_fit_are_answered_one_after_the_other(sdk: openai.OpenAI) -> None:
    found = sdk.chat.completions.create(**CHAT | {"max_tokens": 4}, n=5, temperature=1.0)
    assert [each.index for each in found.choices] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("fields", "param"), [({"n": 0}, "n"), ({"n": 17}, "n"), ({"best_of": 2}, "best_of")]
)
def test_what_is_too_much_is_refused_by_name(sdk: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.completions.create(model=MODEL, prompt="x", extra_body=fields)
    assert raised.value.param == param


def test_a_line_of_a_batch_has_them(sdk: openai.OpenAI) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    body = CHAT | {"n": 3, "temperature": 1.5, "seed": 7, "logprobs": True}
    done = ended(sdk, run(sdk, jsonl([line | {"body": body}])).id, timeout=200)
    found = results(sdk, done.output_file_id)["a"]["response"]["body"]
    assert [each["index"] for each in found["choices"]] == [0, 1, 2]
    assert len({each["message"]["content"] for each in found["choices"]}) == 3
    assert all(len(each["logprobs"]["content"]) == 16 for each in found["choices"])
    assert found["usage"]["completion_tokens"] == 3 * 16
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed) == (1, 1)


def test_a_native_job_has_no_choices(client: Client) -> None:
    refused = client.http.post("/v1/jobs", json={"input": "x", "n": 2})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "n"


def test_a_repeated_request_gets_the_choices_of_the_first(sdk: openai.OpenAI) -> None:
    again = {"Idempotency-Key": "choices-1"}
    found = [
        sdk.chat.completions.create(**CHAT | {"max_tokens": 5}, n=2, temperature=1.5, extra_headers=again)
        for _ in range(2)
    ]
    first, second = ([each.message.content for each in one.choices] for one in found)
    assert first == second
    assert found[0].id == found[1].id
