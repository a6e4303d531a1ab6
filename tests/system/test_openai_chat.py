"""OpenAI's own client asks and waits: chat and text completions, streamed and not, beside batch work."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from cli.stack.stack import Stack
from openai_support import MODEL, chat_line, ended, jsonl, run
from support import NO_CERTIFICATES, eventually
from system_support import Gauges

pytestmark = pytest.mark.timeout(240)

ENGINE_MODE = "synthetic"
TIME_SCALE = 12.0


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        yield client


@pytest.fixture
def plain(stack: Stack) -> Iterator[httpx2.Client]:
    assert stack.urls.api_url is not None
    headers = {"Authorization": f"Bearer {stack.urls.api_key}"}
    with httpx2.Client(
        base_url=stack.urls.api_url, timeout=30, headers=headers, verify=NO_CERTIFICATES
    ) as client:
        yield client


def messages(text: str) -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


def test_a_chat_is_answered_whole_and_in_chunks_with_the_same_words(sdk: openai.OpenAI) -> None:
    asked = messages("How are you? [[tokens=60]]")
    whole = sdk.chat.completions.create(model=MODEL, messages=asked, max_tokens=100, seed=7)
    assert (whole.object, whole.model, whole.choices[0].finish_reason) == ("chat.completion", MODEL, "stop")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 60
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 60
    chunks = list(
        sdk.chat.completions.create(
            model=MODEL,
            messages=asked,
            max_tokens=100,
            seed=7,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > 5


def test_a_text_is_completed_and_cut_at_max_tokens(sdk: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "prompt": "Once upon [[tokens=60]]",
        "max_tokens": 20,
        "temperature": 0,
    }
    whole = sdk.completions.create(**asked)
    assert (whole.object, whole.choices[0].finish_reason) == ("text_completion", "length")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 20
    pieces = sdk.completions.create(**asked, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


def test_plain_generate_answers_and_streams(plain: httpx2.Client) -> None:
    body = {"prompt": "Go on [[tokens=30]]", "max_tokens": 40, "temperature": 0, "top_p": 1.0}
    whole = plain.post("/generate", json=body)
    assert whole.status_code == 200
    assert whole.json()["usage"]["completion_tokens"] == 30
    with plain.stream("POST", "/generate_stream", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert '"finish_reason":"stop"' in events[-1]
    assert len(events) > 2


def test_without_a_temperature_openai_s_routes_sample_and_generate_does_not(
    sdk: openai.OpenAI, plain: httpx2.Client
) -> None:
    prompt = "Go on and on [[tokens=12]]"

    def chat(_: int) -> str | None:
        answer = sdk.chat.completions.create(model=MODEL, messages=messages(prompt), max_tokens=20)
        return answer.choices[0].message.content

    def generate(_: int) -> str:
        text: str = plain.post("/generate", json={"prompt": prompt, "max_tokens": 20}).json()["text"]
        return text

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(chat, range(8)))) > 1
        assert len(set(pool.map(generate, range(4)))) == 1


def test_models_are_listed(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.models.retrieve("gpt-9")
    assert raised.value.code == "model_not_found"


def test_wrong_requests_name_their_parameter(sdk: openai.OpenAI) -> None:
    def refused(**fields: object) -> openai.BadRequestError:
        given = {"model": MODEL, "messages": messages("Hello"), "max_tokens": 8, **fields}
        with pytest.raises(openai.BadRequestError) as raised:
            sdk.chat.completions.create(**given)  # type: ignore[call-overload]  # wrong on purpose
        return raised.value

    assert refused(n=17).param == "n"
    assert refused(temperature=3).param == "temperature"
    assert refused(functions=[{"name": "f"}]).param == "functions"
    assert refused(max_tokens=0).param == "max_tokens"
    long = refused(max_tokens=131_072)
    assert (long.code, long.param) == ("context_length_exceeded", "messages")
    assert "maximum context length" in long.message
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.chat.completions.create(model="gpt-9", messages=messages("Hello"))
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


def test_a_reader_that_leaves_frees_the_engine(sdk: openai.OpenAI, gauges: Gauges) -> None:
    stream = sdk.chat.completions.create(
        model=MODEL, messages=messages("Talk. [[tokens=100000]]"), max_tokens=100_000, stream=True
    )
    next(chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
    began = time.monotonic()
    next(chunk for chunk in stream if time.monotonic() - began > 0.5)  # gauges are renewed every 0.1 s
    assert gauges.read()["requests{active}"] == 1
    stream.close()
    gauges.until_idle()


def test_a_caller_that_stops_waiting_frees_the_engine(plain: httpx2.Client, gauges: Gauges) -> None:
    body = {"prompt": "Talk. [[tokens=100000]]", "max_tokens": 100_000}
    with pytest.raises(httpx2.ReadTimeout):
        plain.post("/generate", json=body, timeout=httpx2.Timeout(5, read=1.5))
    gauges.until_idle()


def test_answers_come_while_a_batch_fills_the_engine_and_the_batch_completes(
    sdk: openai.OpenAI, gauges: Gauges
) -> None:
    lines = [chat_line(f"{number}", f"[[tokens=1200]] {number}", max_tokens=1500) for number in range(8)]
    batch = run(sdk, jsonl(lines))
    eventually(lambda: gauges.read()["requests{active}"] == 4)

    def ask(number: int) -> str | None:
        answer = sdk.chat.completions.create(
            model=MODEL, messages=messages(f"Question {number}. [[tokens=12]]"), max_tokens=20
        )
        return answer.choices[0].message.content

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(ask, range(6)))
    last = sdk.batches.retrieve(batch.id)
    assert last.status == "in_progress"
    counts = ended(sdk, batch.id, timeout=120).request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (8, 0)
