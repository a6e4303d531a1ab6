"""Log probabilities over real llama.cpp, through every route, in OpenAI's own shapes."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

from cli.stack.stack import Stack
from openai_support import TEXT, ended, jsonl, results, run
from system_support import Client

pytestmark = pytest.mark.timeout(400)

ENGINE_MODE = "llama"
MODEL = "SmolLM2-135M-Instruct.Q4_1"
ASKED: list[Any] = [{"role": "user", "content": "Name three fruits."}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": ASKED, "max_tokens": 16, "temperature": 0}
PROMPT: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as found:
        yield found


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=120) as found:
        yield found


def assert_scored(
    content: list[ChatCompletionTokenLogprob] | None, text: str | None, *, num_top: int
) -> None:
    """The tokens spell the text, and each is the most likely one, as a greedy answer's are."""
    assert content
    assert b"".join(bytes(each.bytes or []) for each in content).decode() == text
    for each in content:
        assert each.logprob <= 0
        assert bytes(each.bytes or []).decode() == each.token
        top = [other.logprob for other in each.top_logprobs]
        assert len(top) == num_top
        assert top == sorted(top, reverse=True)
        if num_top:
            assert (each.top_logprobs[0].token, top[0]) == (each.token, each.logprob)


@pytest.mark.parametrize("num_top", [0, 3])
def test_a_chat_has_them_streamed_and_not(sdk: openai.OpenAI, num_top: int) -> None:
    whole = sdk.chat.completions.create(**CHAT, logprobs=True, top_logprobs=num_top)
    found = whole.choices[0].logprobs
    assert found is not None
    assert found.refusal is None
    assert_scored(found.content, whole.choices[0].message.content, num_top=num_top)
    streamed: list[ChatCompletionTokenLogprob] = []
    text = ""
    with sdk.chat.completions.create(**CHAT, logprobs=True, top_logprobs=num_top, stream=True) as chunks:
        for chunk in chunks:
            choice = chunk.choices[0]
            text += choice.delta.content or ""
            new = (choice.logprobs.content or []) if choice.logprobs else []
            streamed += [ChatCompletionTokenLogprob.model_validate(each.model_dump()) for each in new]
    assert text == whole.choices[0].message.content
    assert_scored(streamed, text, num_top=num_top)
    assert [each.token for each in streamed] == [each.token for each in found.content or []]


def test_a_text_completion_has_them_streamed_and_not(sdk: openai.OpenAI) -> None:
    whole = sdk.completions.create(**PROMPT, logprobs=2).choices[0]
    found = whole.logprobs
    assert found is not None
    assert "".join(found.tokens or []) == whole.text
    assert found.text_offset == [
        sum(map(len, (found.tokens or [])[:n])) for n in range(len(found.tokens or []))
    ]
    assert found.token_logprobs == [
        top[token] for token, top in zip(found.tokens or [], found.top_logprobs or [], strict=True)
    ]
    assert {len(each) for each in found.top_logprobs or []} == {2}
    tokens: list[str] = []
    offsets: list[int] = []
    with sdk.completions.create(**PROMPT, logprobs=2, stream=True) as chunks:
        for chunk in chunks:
            if (new := chunk.choices[0].logprobs) is not None:
                tokens += new.tokens or []
                offsets += new.text_offset or []
    assert (tokens, offsets) == (found.tokens, found.text_offset)
    own = sdk.completions.create(**PROMPT, logprobs=0).choices[0].logprobs
    assert own is not None
    assert (own.tokens, own.top_logprobs) == (found.tokens, None)


def test_they_end_where_a_stop_string_ends_the_text(sdk: openai.OpenAI) -> None:
    whole = sdk.completions.create(**PROMPT, logprobs=0).choices[0]
    stop = whole.text[8:14]
    cut = sdk.completions.create(**PROMPT, logprobs=0, stop=stop).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.find(stop)]
    assert cut.logprobs is not None
    assert all(offset < len(cut.text) for offset in cut.logprobs.text_offset or [])
    assert "".join(cut.logprobs.tokens or []).startswith(cut.text)


def test_who_does_not_ask_gets_none(sdk: openai.OpenAI) -> None:
    assert sdk.chat.completions.create(**CHAT).choices[0].logprobs is None
    assert sdk.completions.create(**PROMPT).choices[0].logprobs is None


def test_native_jobs_and_bulk_lines_have_them(client: Client) -> None:
    given = {"max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    job = client.submit("Name three fruits.", **given)
    lines = jsonl([{"input": "Name three fruits.", **given}, {"input": "x", "top_logprobs": 2}])
    bulk = client.http.post("/v1/jobs/bulk", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert [each["param"] for each in bulk.json()["errors"]] == ["top_logprobs"]
    for job_id in (job["id"], *bulk.json()["ids"]):
        assert client.finished(job_id, timeout=120)["state"] == "completed"
        result = client.result(job_id)
        content = [ChatCompletionTokenLogprob.model_validate(each) for each in result["logprobs"]["content"]]
        assert_scored(content, result["output"], num_top=2)
    other = client.submit("Say yes.", max_tokens=2)
    client.finished(other["id"], timeout=120)
    assert client.result(other["id"])["logprobs"] is None


def test_lines_of_a_batch_have_them(sdk: openai.OpenAI) -> None:
    def line(name: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401  # a request's fields
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": CHAT | body}

    lines = [line("top", logprobs=True, top_logprobs=2), line("none"), line("wrong", top_logprobs=2)]
    done = ended(sdk, run(sdk, jsonl(lines)).id, timeout=300)
    assert done.status == "completed"
    answers, errors = results(sdk, done.output_file_id), results(sdk, done.error_file_id)
    choice = answers["top"]["response"]["body"]["choices"][0]
    content = [ChatCompletionTokenLogprob.model_validate(each) for each in choice["logprobs"]["content"]]
    assert_scored(content, choice["message"]["content"], num_top=2)
    assert answers["none"]["response"]["body"]["choices"][0]["logprobs"] is None
    assert errors["wrong"]["response"]["body"]["error"]["param"] == "top_logprobs"


def test_lines_of_text_have_them(sdk: openai.OpenAI) -> None:
    line = {"custom_id": "a", "method": "POST", "url": TEXT, "body": PROMPT | {"logprobs": 1}}
    done = ended(sdk, run(sdk, jsonl([line]), endpoint=TEXT).id, timeout=300)
    choice = results(sdk, done.output_file_id)["a"]["response"]["body"]["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_a_guided_answer_has_them(sdk: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["red", "green"]}}}
    answer = sdk.chat.completions.create(**CHAT | {"response_format": form}, logprobs=True).choices[0]
    assert json.loads(answer.message.content or "") in {"red", "green"}
    assert answer.logprobs is not None
    assert_scored(answer.logprobs.content, answer.message.content, num_top=0)


@pytest.mark.parametrize("is_background", [False, True])
def test_a_response_has_them_in_its_message_streamed_and_kept(
    sdk: openai.OpenAI, *, is_background: bool
) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": ASKED,
        "max_output_tokens": 16,
        "temperature": 0,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "background": is_background,
    }
    events: list[Any] = list(sdk.responses.create(**asked, stream=True))
    last = events[-1].response
    part = last.output[0].content[0]
    assert_scored(part.logprobs, part.text, num_top=2)
    streamed = [
        each for event in events if event.type == "response.output_text.delta" for each in event.logprobs
    ]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    tokens = [each.token for each in part.logprobs]
    assert [each.token for each in done.logprobs] == tokens
    assert [each.token for each in streamed] == tokens[: len(streamed)]
    kept: Any = sdk.responses.retrieve(last.id)
    assert kept == last
    again: list[Any] = list(sdk.responses.retrieve(last.id, stream=True))
    assert again[-1].response == last
    middle = next(event for event in events if event.type == "response.output_text.delta")
    rest: list[Any] = list(
        sdk.responses.retrieve(last.id, stream=True, starting_after=middle.sequence_number)
    )
    later = [each.token for event in rest if "text.delta" in event.type for each in event.logprobs]
    assert "".join(later) == part.text[len(middle.delta) :]


def test_a_batch_of_responses_has_them(sdk: openai.OpenAI) -> None:
    body = {
        "model": MODEL,
        "input": ASKED,
        "max_output_tokens": 8,
        "temperature": 0,
        "include": ["message.output_text.logprobs"],
    }
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    batch = ended(sdk, run(sdk, jsonl([line]), endpoint="/v1/responses").id, timeout=200)
    found = results(sdk, batch.output_file_id)["a"]["response"]["body"]["output"][0]["content"][0]
    assert b"".join(bytes(each["bytes"]) for each in found["logprobs"]).decode() == found["text"]
