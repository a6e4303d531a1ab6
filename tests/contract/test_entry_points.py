"""The suite of entry points over the local engine: TensorRT-LLM's four, BLS twice, and vLLM's."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from cli.stack.servers.engine_options import EngineOptions, OracleFaults
from entry_point_suite import *  # noqa: F403  all of its tests
from entry_points import Mortal, Served
from jobs.prompts.tokenizer import TokenIds, Tokenizer
from local_engine import KillableEngine, RunningEngine, engine_module, running_engine
from support import eventually

MODELS = ("tensorrt_llm", "llmapi", "ensemble", "tensorrt_llm_bls", "vllm_model")
ACCUMULATING = "accumulating"  # the BLS model again, with `accumulate_tokens`

Starter = Callable[..., RunningEngine]
OptionsOf = Callable[..., EngineOptions]


@pytest.fixture(scope="module")
def options(tokenizer_dir: Path) -> OptionsOf:
    """Of an engine with every entry point, 40 times as fast as an A6000."""

    def made(*, accumulates: bool = False, error_rate: float = 0) -> EngineOptions:
        return EngineOptions(
            mode="oracle",
            tokenizer_dir=tokenizer_dir,
            time_scale=40,
            tokens_per_response=1,
            faults=OracleFaults(error_rate=error_rate),
            text_models=True,
            accumulate_tokens=accumulates,
            vllm_model=True,
            llmapi=True,
        )

    return made


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, options: OptionsOf) -> Iterator[Starter]:
    """Starts each kind of server once."""
    running: dict[EngineOptions, RunningEngine] = {}
    with ExitStack() as servers:

        def start(**chosen: float) -> RunningEngine:
            wanted = options(**chosen)
            if wanted not in running:
                context = running_engine(tmp_path_factory.mktemp("engine"), wanted)
                running[wanted] = servers.enter_context(context)
            return running[wanted]

        yield start


@pytest.fixture(params=[*MODELS, ACCUMULATING])
def served(request: pytest.FixtureRequest, started: Starter, served_tokenizer: Tokenizer) -> Served:
    name: str = request.param
    is_accumulating = name == ACCUMULATING
    engine = started(accumulates=is_accumulating)
    found = _served(engine, "tensorrt_llm_bls" if is_accumulating else name, served_tokenizer)
    eventually(found.is_idle)
    # Each of its responses repeats the whole text so far, and its client is Python on the server.
    return replace(found, long_answer=1000) if is_accumulating else found


@pytest.fixture(params=MODELS)
def failing(request: pytest.FixtureRequest, started: Starter, served_tokenizer: Tokenizer) -> Served:
    """Each of its answers ends with an error."""
    return _served(started(accumulates=True, error_rate=1), request.param, served_tokenizer)


@pytest.fixture
def mortal(tmp_path: Path, options: OptionsOf, served_tokenizer: Tokenizer) -> Iterator[Mortal]:
    server = KillableEngine(tmp_path, replace(options(accumulates=True), max_batch_size=len(MODELS)))
    yield Mortal(server, lambda: [_served(server.engine, name, served_tokenizer) for name in MODELS])
    server.kill()


def _served(engine: RunningEngine, model_name: str, tokenizer: Tokenizer) -> Served:
    def says(prompt: TokenIds) -> list[int]:
        return tokenizer.encode_text(engine_module("oracle").expected_text(prompt.tolist())).tolist()

    return Served.on(engine, model_name, tokenizer, says=says)
