"""The transformers engine answers as transformers does and behaves as TensorRT-LLM's model does."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.stack.servers.transformers_options import TransformersOptions
from local_engine import RunningEngine, running_engine
from support import eventually
from torch_support import Reference, generating_process, options


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [3 + (7 * place + 13 * salt + place * place % 11) % 500 for place in range(length)]


def is_idle(engine: RunningEngine) -> bool:
    gauges = engine.gauges()
    return gauges["active"] == gauges["used"] == gauges["reserved_blocks"] == gauges["queued"] == 0


@pytest.mark.parametrize("length", [1, 15, 16, 17, 127, 128, 129, 1000])
def test_greedy_output_equals_what_transformers_generates(
    engine: RunningEngine, model: Reference, length: int
) -> None:
    answer = engine.ask(prompt_of(length), 24, end_id=None).read()
    assert answer.ids == model.greedy(prompt_of(length), 24)
    assert [len(response) for response in answer.responses] == [1] * 24


def test_four_together_say_what_each_says_alone(engine: RunningEngine, model: Reference) -> None:
    prompts = [prompt_of(length, salt) for salt, length in enumerate((5, 300, 40, 900))]
    streams = [engine.ask(prompt, 40, end_id=None) for prompt in prompts]
    for prompt, stream in zip(prompts, streams, strict=True):
        assert stream.read().ids == model.greedy(prompt, 40)
    eventually(lambda: is_idle(engine))


@pytest.mark.parametrize("attention", ["varlen", "sdpa", "eager"])
def test_every_attention_says_the_same(tmp_path: Path, model: Reference, attention: str) -> None:
    prompts = [prompt_of(length, salt) for salt, length in enumerate((7, 400))]
    with running_engine(tmp_path, options(model, attention=attention, sampling=False)) as other:
        streams = [other.ask(prompt, 16, end_id=None) for prompt in prompts]
        assert [stream.read().ids for stream in streams] == [model.greedy(each, 16) for each in prompts]


def test_the_end_token_comes_as_an_empty_final_response(engine: RunningEngine, model: Reference) -> None:
    said = model.greedy(prompt_of(50), 30)
    end = next(token for place, token in enumerate(said) if place > 2 and token not in said[:place])
    answer = engine.ask(prompt_of(50), 100, end_id=end).read()
    assert answer.is_final
    assert answer.ids == said[: said.index(end)]
    assert answer.responses[-1] == []


def test_the_last_token_within_max_tokens_is_the_final_response(engine: RunningEngine) -> None:
    answer = engine.ask(prompt_of(50), 7, end_id=None).read()
    assert answer.is_final
    assert [len(response) for response in answer.responses] == [1] * 7


def test_a_request_that_does_not_stream_gets_one_response(engine: RunningEngine, model: Reference) -> None:
    answer = engine.ask(prompt_of(50), 9, end_id=None, streaming=False).read()
    assert answer.responses == [model.greedy(prompt_of(50), 9)]


def test_a_stop_word_ends_the_answer_and_is_said(engine: RunningEngine, model: Reference) -> None:
    said = model.greedy(prompt_of(60), 40)
    words = [said[5:7], [511]]
    listed = [[*words[0], *words[1]], [2, 3, -1]]
    answer = engine.ask(prompt_of(60), 200, end_id=None, stop_words=listed).read()
    place = next(i for i in range(1, 40) if said[i - 1 : i + 1] == words[0])
    assert answer.ids == said[: place + 1]
    eventually(lambda: is_idle(engine))


def test_blocks_are_reserved_while_a_request_runs_and_free_after_it(engine: RunningEngine) -> None:
    stream = engine.ask(prompt_of(1000), 600, end_id=None)
    stream.next()
    gauges = eventually(lambda: (found := engine.gauges())["reserved_blocks"] > 0 and found)
    assert (gauges["max_blocks"], gauges["tokens_per"], gauges["max_requests"]) == (256, 16, 4)
    assert gauges["reserved_blocks"] == 100
    assert 63 <= gauges["used"] <= 100
    assert gauges["free"] == 256 - gauges["used"]
    stream.close()
    eventually(lambda: is_idle(engine))


def test_a_cancelled_request_frees_its_blocks_for_others(engine: RunningEngine) -> None:
    stream = engine.ask(prompt_of(2000), 2000, end_id=None)
    stream.next()
    stream.close()
    eventually(lambda: is_idle(engine))
    assert len(engine.ask(prompt_of(3000), 5, end_id=None).read().ids) == 5


def test_a_cancelled_prefill_frees_its_blocks(engine: RunningEngine) -> None:
    stream = engine.ask(prompt_of(4000), 10, end_id=None)
    eventually(lambda: engine.gauges()["context"] == 1)
    stream.close()
    eventually(lambda: is_idle(engine))


def test_a_stop_request_of_the_same_id_ends_the_answer(engine: RunningEngine) -> None:
    stream = engine.ask(prompt_of(20), 3000, end_id=None, request_id="mine")
    other = engine.ask(prompt_of(20), 30, end_id=None, request_id="another")
    stream.next()
    stopping = engine.ask([1], 1, request_id="mine", stop=True)
    answer = stream.read()
    assert answer.error is None
    assert answer.responses[-1] == []
    assert 0 < len(answer.ids) < 3000
    assert len(other.read().ids) == 30
    stopping.close()
    eventually(lambda: is_idle(engine))


def test_what_does_not_fit_waits_and_holds_up_those_behind_it(engine: RunningEngine) -> None:
    first = engine.ask(prompt_of(1000), 2500, end_id=None)
    first.next()
    second = engine.ask(prompt_of(1000), 1000, end_id=None)
    eventually(lambda: engine.gauges()["queued"] == 1)
    third = engine.ask(prompt_of(5), 5, end_id=None)
    eventually(lambda: engine.gauges()["queued"] == 2)
    assert engine.gauges()["scheduled"] == 1
    first.close()
    assert len(third.read().ids) == 5
    second.next()
    second.close()
    eventually(lambda: is_idle(engine))


def test_at_most_four_run_at_once(engine: RunningEngine) -> None:
    streams = [engine.ask(prompt_of(20, salt), 900, end_id=None) for salt in range(4)]
    for stream in streams:
        stream.next()
    fifth = engine.ask(prompt_of(20), 5, end_id=None)
    eventually(lambda: engine.gauges()["queued"] == 1)
    assert engine.gauges()["scheduled"] == 4
    streams.pop().close()
    assert len(fifth.read().ids) == 5
    for stream in streams:
        stream.close()
    eventually(lambda: is_idle(engine))


def test_others_get_tokens_between_the_chunks_of_a_long_prompt(engine: RunningEngine) -> None:
    talking = engine.ask(prompt_of(20), 900, end_id=None)
    talking.next()
    long = engine.ask(prompt_of(3000), 4, end_id=None)
    eventually(lambda: engine.gauges()["context"] == 1)
    before = len(talking.answer.ids)
    while not long.answer.responses and len(talking.answer.ids) < 900:
        talking.next()
        if len(talking.answer.ids) - before >= 10:
            break
    assert not long.answer.responses
    assert len(long.read().ids) == 4
    talking.close()
    eventually(lambda: is_idle(engine))


def test_more_output_than_fits_is_cut_in_silence(engine: RunningEngine) -> None:
    answer = engine.ask(prompt_of(4050), 1000, end_id=None).read()
    assert len(answer.ids) == 46
    assert answer.error is None


@pytest.mark.parametrize(
    ("ids", "max_tokens", "values", "message"),
    [
        (prompt_of(4096), 10, {}, "exceeds maximum input length (4095)"),
        (prompt_of(10), 0, {}, "request_output_len"),
        (prompt_of(10), 10, {"beam_width": 2}, "max_beam_width"),
        (prompt_of(10), 10, {"stop": True}, "request_id"),
        (prompt_of(10), 10, {"repetition_penalty": 1.5}, "has no repetition_penalty"),
        (prompt_of(10), 10, {"min_length": 5}, "has no min_length"),
        (prompt_of(10), 10, {"return_log_probs": True}, "has no return_log_probs"),
        (prompt_of(10), 10, {"runtime_top_p": 1.5}, "Assertion failed: topP is 1.5 (samplingConfig.cpp)"),
        (prompt_of(10), 10, {"unheard_of": 1}, "unexpected inference input 'unheard_of'"),
        ([600], 10, {}, "512 tokens in its vocabulary"),
    ],
)
def test_a_wrong_request_is_refused_and_harms_nothing(
    engine: RunningEngine, ids: list[int], max_tokens: int, values: dict[str, Any], message: str
) -> None:
    answer = engine.ask(ids, max_tokens, **values).read()
    assert answer.error is not None
    assert message in answer.error
    assert len(engine.ask(prompt_of(10), 3, end_id=None).read().ids) == 3


def test_requests_sample_or_not_side_by_side(engine: RunningEngine, model: Reference) -> None:
    greedy = model.greedy(prompt_of(30), 30)
    hot = [engine.ask(prompt_of(30), 30, end_id=None, temperature=5.0, runtime_top_p=1.0) for _ in range(2)]
    unasked = engine.ask(prompt_of(30), 30, end_id=None, temperature=5.0, runtime_top_k=0)
    plain = engine.ask(prompt_of(30), 30, end_id=None)
    narrow = engine.ask(prompt_of(30), 30, end_id=None, temperature=5.0, runtime_top_p=1e-6)
    answers = [stream.read().ids for stream in hot]
    assert plain.read().ids == greedy
    assert unasked.read().ids == greedy, "as in TensorRT-LLM, whose top-p is 0 unless it is given"
    assert narrow.read().ids == greedy
    assert greedy not in answers
    assert answers[0] != answers[1]


def test_an_engine_without_sampling_says_so(tmp_path: Path, model: Reference) -> None:
    with running_engine(tmp_path, options(model, sampling=False)) as other:
        refused = other.ask(prompt_of(5), 5, temperature=1.0, runtime_top_p=1.0).read()
        greedy = other.ask(prompt_of(5), 5, end_id=None, temperature=1.0).read()
    assert "without sampling" in (refused.error or "")
    assert greedy.ids == model.greedy(prompt_of(5), 5)


def test_the_death_of_the_generating_process_fails_what_runs_and_nothing_after(
    engine: RunningEngine, model: Reference
) -> None:
    stream = engine.ask(prompt_of(20), 3000, end_id=None)
    waiting = engine.ask(prompt_of(3000), 1000, end_id=None)
    stream.next()
    eventually(lambda: engine.gauges()["active"] == 2)
    os.kill(generating_process(engine), signal.SIGKILL)
    assert "the engine failed" in (stream.read().error or "")
    assert "the engine failed" in (waiting.read().error or "")
    assert engine.ask(prompt_of(20), 9, end_id=None).read().ids == model.greedy(prompt_of(20), 9)
    eventually(lambda: is_idle(engine))


def test_no_process_outlives_a_killed_server(tmp_path: Path, model: Reference) -> None:
    with running_engine(tmp_path, options(model)) as other:
        generating = generating_process(other)
        other.process.kill()
        other.process.wait()
        eventually(
            lambda: not Path(f"/proc/{generating}/status").exists() or is_zombie(generating), timeout=10
        )


def test_a_busy_server_stops_and_ends_its_streams_with_an_error(tmp_path: Path, model: Reference) -> None:
    with running_engine(tmp_path, options(model)) as other:
        stream = other.ask(prompt_of(20), 3900, end_id=None)
        stream.next()
        other.process.terminate()
        assert "shutting down" in (stream.read().error or "")
        assert other.process.wait(timeout=20) == 0


def test_a_directory_without_a_model_is_reported_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "llama", "vocab_size": 512}')
    broken = TransformersOptions(model_dir=tmp_path / "empty", device="cpu")
    with pytest.raises(AssertionError), running_engine(tmp_path / "server", broken):
        pass
    assert "the language model cannot be served" in (tmp_path / "server" / "triton.log").read_text()


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
