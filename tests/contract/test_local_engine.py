"""The local engine behaves as TensorRT-LLM's `tensorrt_llm` model does, on a real Triton server."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from tokenizers import Tokenizer

from cli.stack.ports import LOOPBACK
from cli.stack.servers.engine_options import EngineOptions, OracleFaults, SyntheticOutput
from local_engine import EngineStream, RunningEngine, engine_module, running_engine
from support import PATIENCE, eventually
from worker.engine.triton.model_config import reuses_prefix

REFERENCE = "\n\n".join(topics.values())
ARTICLE = REFERENCE[:6000]

PromptOf = Callable[[str], list[int]]


def is_idle(engine: RunningEngine) -> bool:
    gauges = engine.gauges()
    return gauges["active"] == gauges["used"] == gauges["reserved_blocks"] == 0


def filler(count: int, salt: int = 0) -> list[int]:
    return [1000 + (salt + place) % 500 for place in range(count)]


def four_running(engine: RunningEngine) -> list[EngineStream]:
    """Streams that fill the batch; each has said something."""
    streams = [engine.ask(filler(1000, salt), 1000) for salt in range(4)]
    for stream in streams:
        stream.next()
    return streams


def test_the_end_token_comes_as_an_empty_final_response(
    summarizer: RunningEngine, prompt_of: PromptOf, tokenizer: Tokenizer
) -> None:
    answer = summarizer.ask(prompt_of(ARTICLE), 1000).read()
    assert answer.is_final
    assert answer.responses[-1] == []
    assert all(len(response) == 1 for response in answer.responses[:-1])
    assert 50 <= len(answer.ids) <= 250
    mark, _, extract = tokenizer.decode(answer.ids).partition("] ")
    assert mark == "[stand-in: extract, no model"
    sentences = extract.rstrip(".").split(". ")
    prose = " ".join(ARTICLE.split())
    assert all(sentence in prose for sentence in sentences)


def test_the_last_token_within_max_tokens_is_the_final_response(
    summarizer: RunningEngine, prompt_of: PromptOf
) -> None:
    whole = summarizer.ask(prompt_of(ARTICLE), 1000).read().ids
    answer = summarizer.ask(prompt_of(ARTICLE), 7).read()
    assert answer.is_final
    assert answer.responses == [[token] for token in whole[:7]]


def test_without_an_end_token_it_never_stops_by_itself(
    summarizer: RunningEngine, prompt_of: PromptOf
) -> None:
    answer = summarizer.ask(prompt_of("One short document."), 300, end_id=None).read()
    assert len(answer.ids) == 300
    assert len(answer.responses[-1]) == 1


def test_a_request_that_does_not_stream_gets_one_response(
    summarizer: RunningEngine, prompt_of: PromptOf
) -> None:
    streamed = summarizer.ask(prompt_of(ARTICLE), 1000).read()
    whole = summarizer.ask(prompt_of(ARTICLE), 1000, streaming=False).read()
    assert whole.responses == [streamed.ids]
    assert whole.is_final


def test_a_continuation_equals_the_uninterrupted_output(
    summarizer: RunningEngine, prompt_of: PromptOf
) -> None:
    prompt = prompt_of(ARTICLE)
    whole = summarizer.ask(prompt, 1000).read().ids
    first = summarizer.ask(prompt, 20).read().ids
    second = summarizer.ask(prompt + first, 15).read().ids
    rest = summarizer.ask(prompt + first + second, 1000).read()
    assert first + second + rest.ids == whole
    assert rest.responses[-1] == []
    nothing_left = summarizer.ask(prompt + whole, 1000).read()
    assert nothing_left.responses == [[]]


def test_a_stop_word_is_the_last_that_is_said(summarizer: RunningEngine, prompt_of: PromptOf) -> None:
    prompt = prompt_of(ARTICLE)
    whole = summarizer.ask(prompt, 1000).read().ids
    word = whole[10:12]
    answer = summarizer.ask(prompt, 1000, stop_words=[[*word, 5], [2, 3, -1]]).read()
    assert answer.is_final
    assert answer.ids == whole[:12]


def test_gauges_report_slots_and_blocks_exactly_and_fall_to_zero(loaded: RunningEngine) -> None:
    eventually(lambda: is_idle(loaded))
    streams = four_running(loaded) + [loaded.ask(filler(1000, salt), 1000) for salt in (4, 5)]
    expected = {
        "max_requests": 4,
        "active": 4,
        "scheduled": 4,
        "waiting": 0,
        "queued": 2,
        "reserved_blocks": 4 * ceil(2000 / 64),
        "max_blocks": 131_072 // 64,
        "tokens_per": 64,
    }
    gauges = eventually(lambda: expected.items() <= (now := loaded.gauges()).items() and now)
    assert 4 * ceil(1000 / 64) <= gauges["used"] < gauges["reserved_blocks"]
    eventually(lambda: (now := loaded.gauges())["used"] + now["free"] == now["max_blocks"])
    for stream in streams:
        stream.close()
    eventually(lambda: is_idle(loaded))


def test_a_document_read_before_is_reused_and_the_gauge_and_the_answer_say_so(loaded: RunningEngine) -> None:
    eventually(lambda: is_idle(loaded))
    before = loaded.gauges()["reused"]
    document = [7000 + place % 900 for place in range(2000)]
    first = loaded.ask([*document, 1], 5, return_perf_metrics=True).read()
    second = loaded.ask([*document, 2], 5, return_perf_metrics=True).read()
    assert first.counts["kv_cache_reused_blocks"] == 0
    assert second.counts == {
        "kv_cache_alloc_total_blocks": ceil(2005 / 64),
        "kv_cache_alloc_new_blocks": ceil(2005 / 64) - 2000 // 64,
        "kv_cache_reused_blocks": 2000 // 64,
    }
    assert eventually(lambda: loaded.gauges()["reused"] - before) == 2000 // 64
    eventually(lambda: is_idle(loaded))  # what could be reused counts as free
    assert loaded.ask([*document, 3], 5).read().counts == {}


def test_a_prompt_takes_all_its_blocks_when_it_starts(loaded: RunningEngine) -> None:
    eventually(lambda: is_idle(loaded))
    stream = loaded.ask(filler(30_000), 1000)
    expected = {
        "context": 1,
        "used": ceil(30_000 / 64),
        "reserved_blocks": ceil(31_000 / 64),
    }
    eventually(lambda: expected.items() <= loaded.gauges().items())
    stream.close()


def test_cancel_in_prefill_frees_blocks_at_once(loaded: RunningEngine) -> None:
    eventually(lambda: is_idle(loaded))
    stream = loaded.ask(filler(96_000), 30_000)  # it takes minutes here
    eventually(lambda: loaded.gauges()["context"] == 1)
    stream.close()
    eventually(lambda: is_idle(loaded))


def test_cancel_while_generating_frees_blocks_at_once(loaded: RunningEngine) -> None:
    eventually(lambda: is_idle(loaded))
    stream = loaded.ask(filler(10_000), 30_000)  # it takes minutes here
    stream.next()
    stream.close()
    eventually(lambda: is_idle(loaded))


def test_a_queued_request_can_be_cancelled(loaded: RunningEngine) -> None:
    eventually(lambda: is_idle(loaded))
    running = four_running(loaded)
    queued = loaded.ask(filler(100, 9), 2000)
    eventually(lambda: loaded.gauges()["queued"] == 1)
    queued.close()
    eventually(lambda: loaded.gauges()["queued"] == 0)
    for stream in running:
        stream.close()


def test_a_stop_request_ends_the_running_one_of_its_id(loaded: RunningEngine) -> None:
    eventually(lambda: is_idle(loaded))
    running = loaded.ask(filler(100), 3000, request_id="job-1")
    other = loaded.ask(filler(100, 1), 3000, request_id="job-2")
    running.next()
    stop = loaded.ask([1], 1, request_id="job-1", stop=True).read()
    assert stop.is_final
    assert stop.ids == []
    ended = running.read()
    assert ended.error is None
    assert ended.responses[-1] == []
    assert len(ended.ids) < 3000
    eventually(lambda: loaded.gauges()["active"] == 1)
    other.close()


def test_a_request_that_does_not_fit_holds_up_all_behind_it(loaded: RunningEngine) -> None:
    eventually(lambda: is_idle(loaded))
    first = loaded.ask(filler(1000), 100_000)
    first.next()
    too_large = loaded.ask(filler(1000, 1), 60_000)
    eventually(lambda: loaded.gauges()["queued"] == 1)
    small = loaded.ask(filler(1000, 2), 10)
    expected = {"queued": 2, "scheduled": 1, "waiting": 2}
    eventually(lambda: expected.items() <= loaded.gauges().items())
    for _ in range(20):  # the small one would fit, yet has to wait
        first.next()
    assert loaded.gauges()["queued"] == 2
    too_large.close()
    assert len(small.read().ids) == 10
    first.close()


def test_output_beyond_the_sequence_limit_is_cut_in_silence(
    tmp_path: Path, tokenizer_dir: Path, prompt_of: PromptOf
) -> None:
    prompt = prompt_of(ARTICLE[:2000])
    options = EngineOptions(
        mode="synthetic", tokenizer_dir=tokenizer_dir, time_scale=1000, max_seq_len=len(prompt) + 30
    )
    with running_engine(tmp_path, options) as engine:
        answer = engine.ask(prompt, 1000).read()
        refused = engine.ask(prompt + filler(30), 10).read()
    assert len(answer.ids) == 30
    assert len(answer.responses[-1]) > 0
    assert refused.error is not None
    assert "exceeds maximum input length" in refused.error


def test_the_input_limit_is_published_but_not_enforced(loaded: RunningEngine) -> None:
    with grpcclient.InferenceServerClient(f"{LOOPBACK}:{loaded.launch.grpc_port}") as client:
        config = client.get_model_config("tensorrt_llm").config
    told = {name: value.string_value for name, value in config.parameters.items()}
    assert config.max_batch_size == 4
    assert config.model_transaction_policy.decoupled
    assert told["max_tokens_in_paged_kv_cache"] == "131072"
    assert told["batch_scheduler_policy"] == "guaranteed_no_evict"
    assert told["enable_chunked_context"] == "true"
    assert reuses_prefix(config)
    assert (told["max_input_len"], told["max_seq_len"], told["tokens_per_block"]) == ("96000", "131072", "64")
    stream = loaded.ask(filler(100_000), 10)
    eventually(lambda: loaded.gauges()["context"] == 1)
    stream.close()


@pytest.mark.parametrize(
    ("ids", "max_tokens", "values", "message"),
    [
        (filler(131_072), 10, {}, "exceeds maximum input length (131071)"),
        (filler(10), 0, {}, "request_output_len"),
        (filler(10), 10, {"beam_width": 2}, "max_beam_width"),
        (filler(10), 10, {"stop": True}, "request_id"),
        (filler(10), 10, {"unheard_of": 1}, "unexpected inference input 'unheard_of'"),
    ],
)
def test_a_wrong_request_is_refused_and_harms_nothing(
    loaded: RunningEngine, ids: list[int], max_tokens: int, values: dict[str, Any], message: str
) -> None:
    answer = loaded.ask(ids, max_tokens, **values).read()
    assert answer.error is not None
    assert message in answer.error
    assert len(loaded.ask(filler(10), 3).read().ids) == 3


def test_four_prompts_of_96k_tokens_at_once_are_all_answered(
    summarizer: RunningEngine, prompt_of: PromptOf
) -> None:
    prompts = [prompt_of(REFERENCE)[:3000] + prompt_of(REFERENCE[shift:])[3000:95_800] for shift in range(4)]
    prompts = [prompt + prompt_of("")[-5:] for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: summarizer.ask(prompt, 200).read(), prompts))
    assert all(answer.error is None and len(answer.ids) > 50 for answer in answers)
    eventually(lambda: is_idle(summarizer))


def test_others_stream_on_while_a_long_answer_is_worked_out(
    summarizer: RunningEngine, prompt_of: PromptOf
) -> None:
    streaming = summarizer.ask(prompt_of(ARTICLE), 5000, end_id=None)
    streaming.next()
    long = summarizer.ask(prompt_of(REFERENCE[:300_000]), 5)
    longest_gap = 0.0
    last = time.monotonic()
    while not long.answer.is_final and len(streaming.answer.ids) < 3000:
        streaming.next()
        longest_gap = max(longest_gap, time.monotonic() - last)
        last = time.monotonic()
        if len(streaming.answer.ids) == 400:
            long.read()
    streaming.close()
    assert longest_gap < 5, "a machine at work makes gaps too, but shorter ones"


def test_two_servers_run_side_by_side_in_any_directory(tmp_path: Path, loaded: RunningEngine) -> None:
    options = EngineOptions(mode="synthetic", time_scale=100, kv_cache_reuse=False)
    with running_engine(tmp_path / 'it\'s ünï "code" $HOME', options) as second:
        one, two = loaded.ask(filler(50), 5), second.ask(filler(50), 5)
        assert one.read().ids == two.read().ids
        assert_computes_all(second)
    assert len(loaded.ask(filler(50), 5).read().ids) == 5


def assert_computes_all(engine: RunningEngine) -> None:
    """It says that it reuses nothing, and does not."""
    with grpcclient.InferenceServerClient(f"{LOOPBACK}:{engine.launch.grpc_port}") as client:
        assert not reuses_prefix(client.get_model_config("tensorrt_llm").config)
    answers = [engine.ask(filler(1000), 5, return_perf_metrics=True).read() for _ in range(2)]
    assert [answer.counts["kv_cache_reused_blocks"] for answer in answers] == [0, 0]
    assert engine.gauges()["reused"] == 0


def test_a_load_test_chooses_output_lengths_by_mark_and_by_seed(
    tmp_path: Path, tokenizer_dir: Path, prompt_of: PromptOf
) -> None:
    length = SyntheticOutput(median=100, sigma=0.5)
    options = EngineOptions(mode="synthetic", tokenizer_dir=tokenizer_dir, time_scale=1000, synthetic=length)
    expected = engine_module("synthetic").lognormal_length
    drawn = expected(7, engine_module("synthetic").OutputLength(100, 0.5))
    with running_engine(tmp_path, options) as engine:
        marked = engine.ask(prompt_of("A load. [[tokens=123]]"), 500).read()
        seeded = engine.ask(prompt_of("A load."), 5000, random_seed=7).read()
    assert (len(marked.ids), marked.responses[-1]) == (123, [])
    assert (len(seeded.ids), seeded.responses[-1]) == (drawn, [])
    assert max(len(response) for response in marked.responses) == 8


def test_the_oracle_says_what_anyone_can_compute_between_its_faults(
    tmp_path: Path, tokenizer_dir: Path, tokenizer: Tokenizer, prompt_of: PromptOf
) -> None:
    faults = OracleFaults(
        seed=1, error_rate=0.4, silence_rate=0.3, silence_seconds=0.3, gap_rate=0.02, gap_seconds=0.02
    )
    options = EngineOptions(mode="oracle", tokenizer_dir=tokenizer_dir, time_scale=200, faults=faults)
    expected_text = engine_module("oracle").expected_text
    num_errors = 0
    with running_engine(tmp_path, options) as engine:
        for number in range(8):
            prompt, said = prompt_of(f"Question {number}"), list[int]()
            while not (answer := engine.ask(prompt + said, 2000).read()).is_final or answer.error:
                num_errors += 1
                said += answer.ids
            assert tokenizer.decode(said + answer.ids) == expected_text(prompt)
        eventually(lambda: is_idle(engine))
    assert num_errors > 0


def test_a_crash_ends_all_active_requests_with_an_error(
    tmp_path: Path, tokenizer_dir: Path, prompt_of: PromptOf
) -> None:
    faults = OracleFaults(crash_rate=1.0)
    options = EngineOptions(mode="oracle", tokenizer_dir=tokenizer_dir, time_scale=1, faults=faults)
    with running_engine(tmp_path, options) as engine:
        streams = [engine.ask(prompt_of(f"Question {number}"), 2000) for number in range(3)]
        for stream in streams:
            stream.next()
        answers = [stream.read() for stream in streams]
        eventually(lambda: is_idle(engine))
    assert all(answer.error for answer in answers)


def test_an_idle_server_stops_by_itself(tmp_path: Path) -> None:
    with running_engine(tmp_path, EngineOptions(mode="synthetic")) as engine:
        engine.ask(filler(50), 2).read()
        engine.process.terminate()
        assert engine.process.wait(timeout=PATIENCE) == 0
        assert "Fatal Python error" not in engine.log.read_text()


def test_a_busy_server_ends_its_streams_with_an_error_and_stops(tmp_path: Path) -> None:
    with running_engine(tmp_path, EngineOptions(mode="synthetic")) as engine:
        streams = four_running(engine) + [engine.ask(filler(50, salt), 5000) for salt in (4, 5)]
        eventually(lambda: engine.gauges()["queued"] == 2)
        engine.process.terminate()
        assert all("shutting down" in (stream.read().error or "") for stream in streams)
        assert engine.process.wait(timeout=PATIENCE) == 0


def test_no_process_outlives_a_killed_server(tmp_path: Path) -> None:
    with running_engine(tmp_path, EngineOptions(mode="synthetic")) as engine:
        stub = stub_of(engine)
        stream = engine.ask(filler(50), 5000)
        stream.next()
        engine.process.kill()
        engine.process.wait()
        eventually(lambda: has_ended(stub))
        assert stream.read().error is not None


def test_a_model_that_crashes_leaves_its_python_stack_in_the_log(tmp_path: Path) -> None:
    with running_engine(tmp_path, EngineOptions(mode="synthetic")) as engine:
        stub = stub_of(engine)
        os.kill(int(stub.name), signal.SIGSEGV)
        eventually(lambda: has_ended(stub))
        log = engine.log.read_text()
        assert "Fatal Python error: Segmentation fault" in log
        assert "batching.py" in log, "the stacks of all threads"


def stub_of(engine: RunningEngine) -> Path:
    """The process of the engine's one model, below /proc."""
    stubs = Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children")
    stub = Path("/proc") / eventually(lambda: stubs.read_text().split())[0]
    assert "triton_python_backend_stub" in (stub / "cmdline").read_text()
    return stub


def has_ended(process: Path) -> bool:
    """Whether there is no such process, or only its exit status, which init may never fetch."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
