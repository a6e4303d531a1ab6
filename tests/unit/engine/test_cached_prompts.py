"""What each kind of engine says of the prompt that it had in its cache.

The events are in the forms that the servers' sources document; vLLM's and llama.cpp's were seen on real ones.
"""

from typing import Any

import numpy as np
import pytest

from jobs.settings import EngineSettings
from worker.engine.deltas import CachedPrompt
from worker.engine.kinds import HTTP_KINDS
from worker.engine.request import Request
from worker.engine.triton.adapter import cached_in
from worker.engine.triton.ids import IdsAdapter
from worker.engine.triton.llmapi import LlmapiAdapter
from worker.engine.triton.vllm import VllmAdapter
from worker.inference.monitor import credits_reuse

REQUEST = Request("id", np.array([1, 2, 3], dtype=np.int32), 5, 2, 2)


def usage(details: object) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens_details": details}}


def progress(**told: object) -> dict[str, Any]:
    return {"content": "", "tokens": [0], "prompt_progress": {"total": 600, "processed": 600, **told}}


def last(**told: object) -> dict[str, Any]:
    about = {"completion_tokens": 1, "finish_reason": {"type": "stop"}, **told}
    return {"output_ids": [7], "meta_info": about}


def told(kind: str, event: dict[str, Any]) -> list[CachedPrompt]:
    found = HTTP_KINDS[kind].dialect("served", REQUEST).read(event)
    return [each for each in found if isinstance(each, CachedPrompt)]


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("vllm", usage({"cached_tokens": 512})),
        ("trtllm-serve", usage({"cached_tokens": 512})),
        ("openai", usage({"cached_tokens": 512})),
        ("sglang", last(cached_tokens=512)),
        ("llama.cpp", progress(cache=512)),
    ],
)
def test_a_server_over_http_tells_it_in_tokens(kind: str, event: dict[str, Any]) -> None:
    assert told(kind, event) == [CachedPrompt(512)]


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("vllm", usage(None)),  # without --enable-prompt-tokens-details
        ("vllm", {"choices": []}),
        ("openai", usage(["no object"])),
        ("openai", usage({"cached_tokens": "many"})),
        ("openai", usage({"cached_tokens": -1})),
        ("sglang", last()),
        ("llama.cpp", progress()),
    ],
)
def test_a_server_that_does_not_tell_spoils_no_answer(kind: str, event: dict[str, Any]) -> None:
    assert told(kind, event) == []


def test_a_model_behind_triton_is_asked_where_it_declares_the_input_and_tells_in_blocks() -> None:
    inputs = frozenset({"input_ids", "return_perf_metrics"})
    assert IdsAdapter("tensorrt_llm", inputs).tensors(REQUEST)["return_perf_metrics"].tolist() == [[True]]
    assert "return_perf_metrics" not in IdsAdapter("tensorrt_llm", frozenset()).tensors(REQUEST)
    assert cached_in({"kv_cache_reused_blocks": np.int32(31).tobytes()}) == CachedPrompt(blocks=31)
    assert cached_in({}) is None


def test_llmapi_tells_it_as_a_number_or_in_digits() -> None:
    inputs = frozenset({"sampling_param_return_perf_metrics"})
    made = LlmapiAdapter("llmapi", inputs, is_streaming=True)
    assert made.tensors(REQUEST)["sampling_param_return_perf_metrics"].tolist() == [True]
    for raw in (np.int32(31).tobytes(), b"\x02\x00\x00\x0031"):
        assert cached_in({"kv_cache_reused_block": raw}) == CachedPrompt(blocks=31)
    assert cached_in({"kv_cache_reused_block": b"\x04\x00\x00\x00None"}) is None


def test_no_more_than_the_prompt_was_in_the_cache() -> None:
    assert CachedPrompt(blocks=31).of(2000, tokens_per_block=64) == 31 * 64
    assert CachedPrompt(blocks=31).of(1950, tokens_per_block=64) == 1950, "of the last block only a part"
    assert CachedPrompt(512).of(500, tokens_per_block=64) == 500


def test_what_requests_share_is_credited_by_the_kind_of_engine_unless_a_setting_tells_otherwise() -> None:
    of_ids, of_vllm = IdsAdapter("tensorrt_llm", frozenset()), VllmAdapter("vllm_model", frozenset())
    able = [each.abilities for each in (of_ids, of_vllm)]
    assert [credits_reuse(each, EngineSettings()) for each in able] == [False, True]
    for told_so in (True, False):
        settings = EngineSettings(credits_reuse=told_so)
        assert [credits_reuse(each, settings) for each in able] == [told_so, told_so]
