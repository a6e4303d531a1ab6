"""The benchmarks' stand-in for vLLM sends vLLM's fields, and workers read them as vLLM's."""

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

import httpx2
import numpy as np
import pytest

from bench.figures import process, until
from bench.gpu.vllm import clients
from bench.gpu.vllm.gauges import Meter
from bench.gpu.vllm.lists import Listing
from bench.gpu.vllm.marks import END_ID
from bench.stand.documents import Author, Prompt
from entry_points import Asked, ask
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSettings, TritonSettings
from jobs.states import FinishReason
from worker.engine.client import EngineClient
from worker.inference.answer import Answer
from worker.inference.outcome import Finished

_BLOCKS: Final = 141  # those of one longest request
# The fields of `CompletionStreamResponse` that `completion_stream_generator` sets, in their order.
_EVENT: Final = ["id", "object", "created", "model", "choices"]
_CHOICE: Final = [
    *("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.http_streams.engine"]
    command += ["--slots", "4", "--step", "0.001", "--blocks", str(_BLOCKS)]
    with process(command) as (_, output):
        yield output.readline().strip()


@pytest.fixture
def client(url: str) -> Iterator[EngineClient]:
    found = EngineClient(
        TritonSettings(), EngineSettings.model_validate({"url": url, "max_batch_size": 4}), end_id=END_ID
    )
    yield found
    found.close()


@pytest.fixture(scope="module")
def prompts(served_tokenizer: Tokenizer) -> list[Prompt]:
    return Author(served_tokenizer).write(Listing.parse("DECODE:3:40").specs(), seed=3)


def asked(client: EngineClient, tokenizer: Tokenizer, ids: list[int], max_tokens: int) -> Asked:
    return ask(client.served(), tokenizer, np.array(ids, dtype=np.int32), max_tokens=max_tokens)


def test_a_worker_takes_it_for_vllm(client: EngineClient) -> None:
    served, gauges = client.served(), client.gauges()

    assert served.kind == "vllm"
    assert served.abilities.reuses_prefix
    assert gauges is not None
    assert (gauges.max_blocks, gauges.tokens_per_block, gauges.blocks_per_sequence) == (_BLOCKS, 16, 0)
    assert (gauges.active_requests, gauges.waiting_requests, gauges.used_blocks) == (0, 0, 0)


def test_an_answer_ends_where_its_mark_says_and_continues_where_it_stopped(
    client: EngineClient, served_tokenizer: Tokenizer, prompts: list[Prompt]
) -> None:
    prompt = prompts[0]
    whole = asked(client, served_tokenizer, prompt.ids.tolist(), 2048)
    assert whole.follow() == Finished(FinishReason.STOP)
    begun = asked(client, served_tokenizer, prompt.ids.tolist(), 20)
    assert begun.follow() == Finished(FinishReason.LENGTH)
    assert isinstance(whole.answer, Answer)
    assert isinstance(begun.answer, Answer)
    rest = asked(client, served_tokenizer, [*prompt.ids.tolist(), *begun.answer.ids], 2048)
    assert rest.follow() == Finished(FinishReason.STOP)
    assert isinstance(rest.answer, Answer)

    assert whole.answer.num_tokens == prompt.answer_tokens
    assert [*begun.answer.ids, *rest.answer.ids] == list(whole.answer.ids)
    for each in (whole, begun, rest):
        each.close()


def test_its_events_have_vllm_s_fields(url: str, prompts: list[Prompt]) -> None:
    ids = prompts[0].ids.tolist()
    body = {"model": "llama", "prompt": ids, "max_tokens": 3, "stream": True, "return_token_ids": True}
    answer = httpx2.post(f"{url}/v1/completions", json=body, trust_env=False)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    *tokens, usage = [json.loads(each) for each in events[:-1]]

    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert events[-1] == "[DONE]"
    assert [list(each) for each in tokens] == [_EVENT] * 3
    choices: list[dict[str, Any]] = [each["choices"][0] for each in tokens]
    assert [list(each) for each in choices] == [_CHOICE] * 3
    assert [each["prompt_token_ids"] for each in choices] == [ids, None, None]
    assert [each["finish_reason"] for each in choices] == [None, None, "length"]
    assert [len(each["token_ids"]) for each in choices] == [1, 1, 1]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 200, "total_tokens": 203, "completion_tokens": 3}


def test_a_request_without_a_prompt_is_refused_as_by_vllm(url: str) -> None:
    answer = httpx2.post(f"{url}/v1/completions", json={}, trust_env=False)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "BadRequestError"


def test_answers_that_outgrow_its_blocks_are_preempted_and_whole(url: str, prompts: list[Prompt]) -> None:
    longest = sorted(prompts, key=lambda each: -each.spec.output_tokens)[:6]
    assert sum(-(-(200 + each.spec.output_tokens) // 16) for each in longest[:4]) > _BLOCKS
    meter = Meter(url)

    found = clients.run(url, longest)

    assert (found.errors, found.wrong_length, found.unfinished) == ({}, 0, 0)
    assert meter.sample().counters.preempted > 0
    until(meter.is_idle, seconds=10)


def test_a_request_whose_connection_is_cut_leaves_its_slot(url: str, prompts: list[Prompt]) -> None:
    body = {"model": "llama", "prompt": prompts[0].ids.tolist(), "max_tokens": 2000, "stream": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json={**body, "return_token_ids": True}) as answer:
        next(answer.iter_lines())

    until(Meter(url).is_idle, seconds=10)
