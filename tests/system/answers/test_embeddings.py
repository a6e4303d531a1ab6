"""Embeddings by OpenAI's own client over real llama.cpp: waited for, and in batches."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from cli.stack.options import StackOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from openai_support import ended, jsonl, results, run
from support import eventually
from system_support import Client, running_stack

pytestmark = pytest.mark.timeout(400)

MODEL = "SmolLM2-135M-Instruct.Q4_1"
SIZE = 576
TEXTS = ["The cat sleeps on the sofa.", "Interest rates rise again.", "A kitten naps on the couch."]
CONTEXT = 256
URL: Any = "/v1/embeddings"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    engine = LlamaOptions(gguf=bundled_gguf(), context=CONTEXT, slots=1, threads=1, embeddings=True)
    home = tmp_path_factory.mktemp("home")
    env = {"LONGBATCH_ENGINE__SHORTENS_VECTORS": "true"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        with running_stack(StackOptions(directory=home / "longbatch", engine=engine, api_port=0)) as running:
            yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as found:
        yield found


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=120) as found:
        yield found


def engine_vector(stack: Stack, text: str) -> list[float]:
    """What llama.cpp itself says; of several texts at once this quantized model says something else."""
    url = (stack.urls.engine_settings or {})["LONGBATCH_ENGINE__URL"]
    answer = httpx2.post(f"{url}/v1/embeddings", json={"input": text}, timeout=60)
    found: list[float] = answer.raise_for_status().json()["data"][0]["embedding"]
    return found


def test_texts_get_the_vectors_of_the_engine_in_their_order(sdk: openai.OpenAI, stack: Stack) -> None:
    found = sdk.embeddings.create(model=MODEL, input=TEXTS)
    assert (found.object, found.model) == ("list", MODEL)
    assert [each.index for each in found.data] == [0, 1, 2]
    assert {len(each.embedding) for each in found.data} == {SIZE}
    cat, rates, kitten = (np.array(each.embedding) for each in found.data)
    assert cat @ kitten > cat @ rates
    for ours, text in zip(found.data, TEXTS, strict=True):
        assert np.dot(ours.embedding, engine_vector(stack, text)) > 0.999
    assert found.usage.prompt_tokens == found.usage.total_tokens > 12
    alone = sdk.embeddings.create(model=MODEL, input=TEXTS[1])
    assert np.dot(alone.data[0].embedding, rates) > 0.999
    assert alone.usage.prompt_tokens < found.usage.prompt_tokens


def test_numbers_and_base64_say_the_same(sdk: openai.OpenAI, client: Client) -> None:
    numbers = sdk.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float").data[0].embedding
    body = {"model": MODEL, "input": TEXTS[0], "encoding_format": "base64"}
    [packed] = client.http.post("/v1/embeddings", json=body).json()["data"]
    unpacked = np.frombuffer(base64.b64decode(packed["embedding"]), dtype="<f4")
    assert len(unpacked) == len(numbers) == SIZE
    assert np.dot(unpacked, numbers) > 0.999


def test_token_ids_are_taken_as_they_are(sdk: openai.OpenAI) -> None:
    ids = [[504, 2644, 6001], [504, 2644]]
    found = sdk.embeddings.create(model=MODEL, input=ids)
    assert len(found.data) == 2
    assert found.usage.prompt_tokens == 5
    one = sdk.embeddings.create(model=MODEL, input=ids[0])
    assert np.dot(one.data[0].embedding, found.data[0].embedding) > 0.999


def test_a_vector_is_shortened_where_the_settings_say_that_the_model_can(sdk: openai.OpenAI) -> None:
    whole = np.array(sdk.embeddings.create(model=MODEL, input=TEXTS[0]).data[0].embedding[:64])
    short = sdk.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=64).data[0].embedding
    assert len(short) == 64
    assert np.linalg.norm(short) == pytest.approx(1, abs=1e-5)
    assert np.dot(short, whole / np.linalg.norm(whole)) > 0.999
    with pytest.raises(openai.BadRequestError, match="have 576 numbers, not 1000") as refused:
        sdk.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=1000)
    assert refused.value.code == "unsupported_parameter"


def test_an_input_that_is_too_long_is_named(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"input\.1: .*maximum context length is 255") as refused:
        sdk.embeddings.create(model=MODEL, input=["short", "long " * 400])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input.1")
    with pytest.raises(openai.BadRequestError, match="token id 99999 is not in the model's vocabulary"):
        sdk.embeddings.create(model=MODEL, input=[99999])


def test_such_a_request_is_kept_as_jobs(sdk: openai.OpenAI, client: Client) -> None:
    header = {"Idempotency-Key": "embeddings-1"}
    first = sdk.embeddings.with_raw_response.create(model=MODEL, input=TEXTS, extra_headers=header)
    again = sdk.embeddings.with_raw_response.create(model=MODEL, input=TEXTS, extra_headers=header)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.parse().data == first.parse().data
    listed = client.http.get("/v1/jobs", params={"limit": 3}).json()["data"]
    assert {(each["task"], each["state"], each["completion_tokens"]) for each in listed} == {
        ("embed", "completed", 0)
    }
    result = client.http.get(f"/v1/jobs/{listed[0]['id']}/result").json()
    assert len(result["embedding"]) == SIZE
    assert (result["output"], result["finish_reason"]) == ("", "stop")


def line(custom_id: str, **body: object) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"model": MODEL} | body}


def test_a_batch_writes_vectors_in_openai_s_shape(sdk: openai.OpenAI) -> None:
    lines = [
        line("many", input=TEXTS),
        line("one", input=TEXTS[0], encoding_format="base64", share_equal=True),
        line("same", input=TEXTS[0], encoding_format="base64", share_equal=True),
        line("long", input=["short", "long " * 400]),
        line("wrong", input=[]),
    ]
    batch = ended(sdk, run(sdk, jsonl(lines), endpoint=URL).id, timeout=200)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 2)
    found = results(sdk, batch.output_file_id)
    many = found["many"]["response"]["body"]
    assert [each["index"] for each in many["data"]] == [0, 1, 2]
    assert {len(each["embedding"]) for each in many["data"]} == {SIZE}
    waited = sdk.embeddings.create(model=MODEL, input=TEXTS)
    assert np.dot(many["data"][2]["embedding"], waited.data[2].embedding) > 0.999
    assert many["usage"]["prompt_tokens"] == waited.usage.prompt_tokens
    [one], [same] = (found[name]["response"]["body"]["data"] for name in ("one", "same"))
    assert one == same
    assert len(base64.b64decode(one["embedding"])) == 4 * SIZE
    assert batch.usage is not None
    assert batch.usage.output_tokens == 0
    assert batch.usage.input_tokens == sum(
        each["response"]["body"]["usage"]["prompt_tokens"] for each in found.values()
    )
    refused = {
        name: each["response"]["body"]["error"] for name, each in results(sdk, batch.error_file_id).items()
    }
    assert (refused["long"]["code"], refused["long"]["param"]) == ("context_length_exceeded", "input")
    assert refused["wrong"]["param"] == "input"


def test_usage_counts_the_tokens_of_every_input(sdk: openai.OpenAI, client: Client) -> None:
    def tokens() -> int:
        days = client.http.get("/v1/usage").json()["data"]
        return sum(int(each["prompt_tokens"]) for each in days)

    before = tokens()
    used = sdk.embeddings.create(model=MODEL, input=TEXTS).usage.prompt_tokens
    eventually(lambda: tokens() == before + used)


def test_the_model_still_generates(sdk: openai.OpenAI) -> None:
    chat = sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name the capital of France."}],
        max_tokens=12,
        temperature=0,
    )
    assert "Paris" in (chat.choices[0].message.content or "")
