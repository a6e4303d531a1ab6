"""What vLLM's windows and data-parallel engines take of its pool: our account next to vLLM's own.

The model is a small Gemma 3 with random weights: of six layers five have a window. With `-s` it prints the
figures.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from math import ceil
from pathlib import Path
from typing import Final

import httpx2
import pytest

from jobs.engines.capacity import Capacity
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import TritonSettings
from vllm_server import VllmServer
from worker.engine.client import EngineClient
from worker.engine.gauges import Gauges

pytestmark = pytest.mark.timeout(1500)

_CONTEXT: Final = 4096
_WINDOW: Final = 128
_ITERATION_TOKENS: Final = 512
_PROMPT: Final = 3000
_OUTPUT: Final = 300
_POOL: Final = 640 * VllmServer.tokens_per_block
_CONCURRENCY: Final = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": tokenizer.num_tokens,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "sliding_window": _WINDOW,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "max_position_embeddings": _CONTEXT,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[VllmServer]:
    made = VllmServer(
        tmp_path_factory.mktemp("vllm"),
        model,
        slots=64,
        context=_CONTEXT,
        pool_tokens=_POOL,
        iteration_tokens=_ITERATION_TOKENS,
        has_weights=False,
    )
    yield made.start()
    made.kill()


def described(server: VllmServer) -> tuple[Capacity, Gauges]:
    client = EngineClient(TritonSettings(), server.settings, end_id=0)
    found, gauges = client.describe().capacity, client.gauges()
    client.close()
    assert gauges is not None
    return found, gauges


def test_the_constant_of_a_windowed_model_is_vllm_s_own_number(server: VllmServer) -> None:
    capacity, gauges = described(server)
    told = _CONCURRENCY.search(server.log())
    assert told is not None
    concurrency = float(told[2])
    of_longest = capacity.blocks_of(_CONTEXT)
    print(f"\nconstant {capacity.blocks_per_sequence}, {of_longest} blocks, vLLM: {told[0]}")  # noqa: T201
    assert told[1] == f"{_CONTEXT:,}"
    assert (gauges.max_blocks + 1) / of_longest == pytest.approx(concurrency, abs=0.005)
    # The window and what is read at once, in one batch or two, for each of five groups of one layer.
    by_hand = [
        5 * (ceil((_WINDOW - 1 + batches * _ITERATION_TOKENS) / server.tokens_per_block) + 1)
        for batches in (1, 2)
    ]
    assert capacity.blocks_per_sequence in by_hand


def test_the_blocks_of_two_engines_are_counted_once_each(
    tmp_path_factory: pytest.TempPathFactory, model: Path, server: VllmServer
) -> None:
    alone, _ = described(server)
    server.kill()
    two = VllmServer(
        tmp_path_factory.mktemp("two"),
        model,
        slots=64,
        context=_CONTEXT,
        pool_tokens=_POOL,
        iteration_tokens=_ITERATION_TOKENS,
        has_weights=False,
        num_engines=2,
    ).start()
    try:
        capacity, gauges = described(two)
        assert gauges.max_blocks == 2 * alone.max_blocks
        assert capacity.blocks_per_sequence == alone.blocks_per_sequence
        assert capacity.max_batch_size == 2 * alone.max_batch_size
        used = used_by_two(two)
    finally:
        two.kill()
    tokens = capacity.blocks_of(_PROMPT) - capacity.blocks_per_sequence
    booked = capacity.blocks_of(_PROMPT + _OUTPUT)
    print(f"\n{used} of {capacity.max_blocks} blocks used by two of {tokens} to {booked} blocks")  # noqa: T201
    assert 2 * tokens <= used <= 2 * booked


def used_by_two(server: VllmServer) -> int:
    """Return the most blocks that vLLM used while two equal requests ran, one in each engine."""
    body = {"model": "scripted", "max_tokens": _OUTPUT, "temperature": 0, "ignore_eos": True}

    def ask(number: int) -> None:
        prompt = [100 + number, *range(1000, 1000 + _PROMPT - 1)]
        answer = httpx2.post(f"{server.url}/v1/completions", json=body | {"prompt": prompt}, timeout=600)
        assert answer.is_success, answer.text

    client, most = EngineClient(TritonSettings(), server.settings, end_id=0), 0
    client.served()
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask, number) for number in range(2)]
        while not all(each.done() for each in asking):
            gauges = client.gauges()
            most = max(most, gauges.used_blocks if gauges is not None else 0)
            wait(asking, timeout=0.02)
        for each in asking:
            each.result()
    client.close()
    return most
