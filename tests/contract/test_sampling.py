"""Sampling as TensorRT-LLM does it: what leaves a request greedy, and what the seed is when none is given."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cli.stack.servers.engine_options import EngineOptions
from entry_points import REFERENCE, Served
from jobs.errors import EngineUnableError
from jobs.prompts.tokenizer import Tokenizer
from jobs.states import FinishReason
from local_engine import RunningEngine, running_engine
from worker.engine.request import Sampling
from worker.inference.outcome import Finished

ARTICLE = REFERENCE[:6000]
HOT: Final[dict[str, Any]] = {"temperature": 1.0, "runtime_top_k": 0, "runtime_top_p": 1.0}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Iterator[RunningEngine]:
    """An engine with every entry point, whose answers to a long document are many."""
    options = EngineOptions(
        tokenizer_dir=tokenizer_dir, time_scale=50, text_models=True, vllm_model=True, llmapi=True
    )
    with running_engine(tmp_path_factory.mktemp("engine"), options) as running:
        yield running


@pytest.fixture(params=["tensorrt_llm", "llmapi", "ensemble", "tensorrt_llm_bls", "vllm_model"])
def served(request: pytest.FixtureRequest, engine: RunningEngine, served_tokenizer: Tokenizer) -> Served:
    return Served.on(engine, request.param, served_tokenizer, says=lambda _: [])


def said(served: Served, *samplings: Sampling) -> list[str]:
    """What is answered to one prompt for each way to pick tokens."""
    runs = [served.ask(served.prompt(ARTICLE), sampling=each) for each in samplings]
    for run in runs:
        run.follow()
        run.close()
    return [run.answer.output().text for run in runs]


def test_a_temperature_alone_samples_and_a_seed_decides_what(served: Served) -> None:
    seeds = [Sampling(temperature=1.0, seed=seed) for seed in (1, 2, 3, 4, 4)]
    *others, one, same = said(served, *seeds)
    assert one == same
    assert len({*others, one}) == 4


def test_an_answer_has_the_fewest_tokens_that_are_asked_for(served: Served) -> None:
    def num_tokens(sampling: Sampling) -> int:
        run = served.ask(served.prompt(ARTICLE), sampling=sampling)
        assert run.follow() == Finished(FinishReason.STOP)
        run.close()
        return run.answer.output().num_tokens

    by_itself = num_tokens(Sampling())
    if "min_tokens" in served.model.abilities.lacks:
        with pytest.raises(EngineUnableError, match="min_tokens"):
            num_tokens(Sampling(min_tokens=by_itself + 25))
    else:
        assert num_tokens(Sampling(min_tokens=by_itself + 25)) >= by_itself + 25
        assert num_tokens(Sampling(min_tokens=1)) == by_itself


def test_temperature_0_is_greedy_whatever_else_is_asked(served: Served) -> None:
    greedy = [Sampling(), Sampling(top_p=0.9, top_k=50, seed=3), Sampling(seed=4)]
    assert len(set(said(served, *greedy))) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 1.0},
        {"temperature": 1.0, "runtime_top_k": 0},
        {"temperature": 1.0, "runtime_top_k": 1, "runtime_top_p": 1.0},
        {"temperature": 1.0, "runtime_top_k": 0, "runtime_top_p": 0.0},
    ],
)
def test_the_engine_is_greedy_unless_top_k_or_top_p_lets_it_choose(
    engine: RunningEngine, served_tokenizer: Tokenizer, values: dict[str, Any]
) -> None:
    ids = served_tokenizer.encode_text(ARTICLE).tolist()
    streams = [engine.ask(ids, 1000), engine.ask(ids, 1000, random_seed=5, **values)]
    greedy, asked = [stream.read().ids for stream in streams]
    assert asked == greedy


def test_requests_without_a_seed_all_draw_the_same(
    engine: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    ids = served_tokenizer.encode_text(ARTICLE).tolist()
    seeds: list[dict[str, Any]] = [{}, {}, {"random_seed": 0}, {"random_seed": 9}]
    streams = [engine.ask(ids, 1000, **HOT, **seed) for seed in seeds]
    first, second, zero, nine = [stream.read().ids for stream in streams]
    assert first == second == zero
    assert nine != first
