"""Every entry point keeps the same promises to a worker: TensorRT-LLM's three, vLLM's, and other engines'."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from cli.stack.engine_options import EngineOptions, OracleFaults
from cli.stack.ports import LOOPBACK
from entry_points import REFERENCE, Served
from jobs.errors import EngineError, EngineLostError, RetryableEngineError
from jobs.states import FinishReason
from jobs.tokens import Tokenizer
from local_engine import RunningEngine, running_engine
from support import eventually
from worker.outcome import Failed, Finished
from worker.pieces import Piece
from worker.prompt_text import prompt_text
from worker.stream import Ended

# The transformers engine has tests of its own in tests/with_torch: its answers cannot be said beforehand.
ENTRIES = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls", "accumulating", "vllm_model")
TIME_SCALE = 40

Starter = Callable[..., RunningEngine]


@pytest.fixture(scope="module")
def served_tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(str(tokenizer_dir))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Iterator[Starter]:
    """Starts a server with every entry point, each kind of server once."""
    running: dict[tuple[bool, float], RunningEngine] = {}
    contexts = []

    def start(*, accumulates: bool = False, error_rate: float = 0) -> RunningEngine:
        key = accumulates, error_rate
        if key not in running:
            options = EngineOptions(
                mode="oracle",
                tokenizer_dir=tokenizer_dir,
                time_scale=TIME_SCALE,
                tokens_per_response=1,
                faults=OracleFaults(error_rate=error_rate),
                text_models=True,
                accumulate_tokens=accumulates,
                vllm_model=True,
            )
            context = running_engine(tmp_path_factory.mktemp("engine"), options)
            contexts.append(context)
            running[key] = context.__enter__()
        return running[key]

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture(params=ENTRIES)
def served(request: pytest.FixtureRequest, started: Starter, served_tokenizer: Tokenizer) -> Served:
    """An entry point whose engine is idle."""
    name: str = request.param
    engine = started(accumulates=name == "accumulating")
    found = Served.on(engine, "tensorrt_llm_bls" if name == "accumulating" else name, served_tokenizer)
    eventually(found.is_idle)
    return found


@pytest.mark.parametrize("subject", ["rivers", "lighthouses"])
def test_an_end_token_ends_a_whole_answer_with_every_character_intact(served: Served, subject: str) -> None:
    ids = served.prompt(f"Write about {subject}.")
    run = served.ask(ids)
    assert run.follow() == Finished(FinishReason.STOP)
    assert run.is_confirmed
    output = run.answer.output()
    assert output.text == served.says(ids)
    assert output.num_tokens == served.tokenizer.count_text(output.text)
    assert not output.replaced
    run.close()


def test_max_tokens_ends_an_answer_wherever_it_cuts_a_character(served: Served) -> None:
    ids = served.prompt("Write about bridges.")
    said = served.tokenizer.encode_text(served.says(ids))
    for limit in (1, 2, 3, 5, 7, 11, 12, 13, 14, 15, 16):
        run = served.ask(ids, max_tokens=limit)
        assert run.follow() == Finished(FinishReason.LENGTH)
        assert run.is_confirmed
        output = run.answer.output()
        assert output.text == served.tokenizer.decode(said[:limit])
        assert output.num_tokens == limit
        run.close()


def test_a_stop_string_across_chunks_ends_the_answer_before_it(served: Served) -> None:
    ids = served.prompt("Write about harbours.")
    whole = served.says(ids)
    stop = whole[len(whole) // 2 - 20 : len(whole) // 2 + 20]
    run = served.ask(ids, stops=[stop, "never said"])
    assert run.follow() == Finished(FinishReason.STOP)
    output = run.answer.output()
    before = whole[: whole.find(stop)]
    assert output.text == before
    assert abs(output.num_tokens - served.tokenizer.count_text(before + stop)) <= 1
    run.stream.stop()
    run.close()
    eventually(served.is_idle)


def test_a_cancelled_request_leaves_the_engine_or_is_known_to_stay(served: Served) -> None:
    run = served.ask(served.prompt("Write about canals."), max_tokens=3000, is_endless=True)
    eventually(lambda: served.engine.gauges()["generation_requests"] == 1)
    run.stream.stop()
    if served.adapter.is_reached:
        assert run.end().confirmed == (served.adapter.stop() is not None)
        eventually(served.is_idle, timeout=1)  # by itself it would take two seconds
    else:
        assert not run.end().confirmed
        run.close()
        assert served.engine.gauges()["active"] == 1
        eventually(served.is_idle)
    run.close()


def test_a_slow_reader_misses_nothing(served: Served) -> None:
    free = threading.Event()
    ids = served.prompt("Write about mountains.")

    def wait(_event: Piece | Ended) -> None:
        free.wait(30)

    run = served.ask(ids, max_tokens=1200, is_endless=True, put=wait)
    eventually(lambda: served.engine.gauges()["generation_requests"] == 1)
    # All is said, unless the stream's buffers are full, which stops nobody else.
    eventually(served.is_idle)
    free.set()
    assert run.follow() == Finished(FinishReason.LENGTH)
    output = run.answer.output()
    once = served.tokenizer.encode_text(served.says(ids)).tolist()
    endless = (once * (1200 // len(once) + 1))[:1200]
    assert output.text == served.tokenizer.decode(endless)
    run.close()


def test_a_prompt_of_400_kb_is_answered(served: Served) -> None:
    ids = served.prompt(REFERENCE[:400_000])
    assert 80_000 < len(ids) < 131_000
    run = served.ask(ids)
    assert run.follow() == Finished(FinishReason.STOP)
    assert run.answer.output().text == served.says(ids)
    run.close()


def test_a_prompt_that_is_too_long_is_refused_for_good(served: Served) -> None:
    run = served.ask(served.prompt("long " * 132_000))
    outcome = run.follow()
    assert isinstance(outcome, Failed)
    assert type(outcome.error) is EngineError
    run.close()


@pytest.mark.parametrize("name", ["tensorrt_llm", "ensemble", "tensorrt_llm_bls"])
def test_triton_s_generate_endpoint_answers(started: Starter, served_tokenizer: Tokenizer, name: str) -> None:
    engine = started()
    served = Served.on(engine, name, served_tokenizer)
    ids = served.prompt("Write about islands.")
    if served.adapter.takes_text:
        text = prompt_text(served_tokenizer, ids, adds_bos=False)
        body: dict[str, object] = {"text_input": text, "max_tokens": 1000, "bad_words": "", "stop_words": ""}
    else:
        numbers = {"input_lengths": len(ids), "request_output_len": 1000, "end_id": served_tokenizer.end_id}
        body = {"input_ids": ids.tolist(), **numbers}
    url = f"http://{LOOPBACK}:{engine.launch.http_port}/v2/models/{name}/generate"
    answer = httpx2.post(url, json=body, timeout=30).raise_for_status().json()
    said = served_tokenizer.decode(answer["output_ids"]) if name == "tensorrt_llm" else answer["text_output"]
    assert said == served.says(ids)


@pytest.mark.parametrize("name", ["tensorrt_llm", "ensemble", "tensorrt_llm_bls", "vllm_model"])
def test_an_error_mid_stream_is_worth_another_try(
    started: Starter, served_tokenizer: Tokenizer, name: str
) -> None:
    served = Served.on(started(accumulates=True, error_rate=1), name, served_tokenizer)
    ids = served.prompt("Write about storms.")
    run = served.ask(ids)
    outcome = run.follow()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, RetryableEngineError)
    assert served.says(ids).startswith(run.answer.snapshot().text)
    assert run.is_confirmed == served.adapter.is_engine
    run.close()
    eventually(served.is_idle)


def test_a_server_that_dies_ends_every_stream_and_answers_again_once_it_is_back(
    tmp_path: Path, tokenizer_dir: Path, served_tokenizer: Tokenizer
) -> None:
    from worker_support import KillableEngine

    options = EngineOptions(
        mode="oracle",
        tokenizer_dir=tokenizer_dir,
        time_scale=TIME_SCALE,
        text_models=True,
        accumulate_tokens=True,
        vllm_model=True,
    )
    names = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls", "vllm_model")
    server = KillableEngine(tmp_path, options)
    try:
        engine = server.start()
        entries = [Served.on(engine, name, served_tokenizer) for name in names]
        ids = entries[0].prompt("Write about deserts.")
        runs = [each.ask(ids, max_tokens=20_000, is_endless=True) for each in entries]
        eventually(lambda: server.engine.gauges()["generation_requests"] == len(names))
        server.kill()
        for run in runs:
            outcome = run.follow()
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, EngineLostError)
            assert not run.is_confirmed
            run.close()
        server.start()
        for each in entries:
            run = each.ask(ids)
            assert run.follow() == Finished(FinishReason.STOP)
            assert run.answer.output().text == each.says(ids)
            run.close()
    finally:
        server.kill()
