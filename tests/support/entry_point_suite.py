"""What every entry point promises a worker, whichever engine is behind it; a module of tests takes all of it.

That module has the fixtures `served` (an entry point whose engine is idle), `failing` (one whose engine can
be struck) and `mortal` (a server that can be killed).
"""

import json

import httpx2
import pytest

from cli.stack.ports import LOOPBACK
from entry_points import REFERENCE, Mortal, Served
from jobs.errors import EngineError, EngineLostError, RetryableEngineError
from jobs.prompts.tokenizer import TokenIds
from jobs.states import FinishReason
from local_engine import RunningEngine
from support import eventually
from worker.engine.request import Sampling, prompt_text
from worker.inference.outcome import Finished


@pytest.mark.parametrize("subject", ["rivers", "lighthouses"])
def test_an_end_token_ends_a_whole_answer_with_every_character_intact(served: Served, subject: str) -> None:
    ids = served.prompt(f"Write about {subject}.")
    run = served.ask(ids)
    assert run.follow() == Finished(FinishReason.STOP)
    assert run.engine_is_done
    output = run.answer.output()
    assert output.text == served.text(ids)
    assert output.num_tokens == len(served.says(ids))
    assert not output.replaced
    run.close()


def test_max_tokens_ends_an_answer_wherever_it_cuts_a_character(served: Served) -> None:
    ids = served.prompt("Write about bridges.")
    said = served.says(ids)
    cuts = [n for n in range(1, len(said)) if served.tokenizer.decode(said[:n]).endswith("\ufffd")]
    assert len(cuts) >= 6
    for limit in (1, *cuts[:8], cuts[-1] + 1):
        run = served.ask(ids, max_tokens=limit)
        assert run.follow() == Finished(FinishReason.LENGTH)
        assert run.engine_is_done
        output = run.answer.output()
        assert output.text == served.tokenizer.decode(said[:limit])
        assert output.num_tokens == limit
        run.close()


def test_a_stop_string_across_chunks_ends_the_answer_before_it(served: Served) -> None:
    ids = served.prompt("Write about harbours.")
    said, whole = served.says(ids), served.text(ids)
    stop = whole[len(whole) // 2 - 20 : len(whole) // 2 + 20]
    run = served.ask(ids, stops=[stop, "never said"])
    assert run.follow() == Finished(FinishReason.STOP)
    output = run.answer.output()
    assert output.text == whole[: whole.find(stop)]
    num_needed = next(n for n in range(len(said)) if stop in served.tokenizer.decode(said[:n]))
    assert abs(output.num_tokens - num_needed) <= 1
    run.stream.stop()
    run.close()
    eventually(served.is_idle)


def test_a_cancelled_request_leaves_the_engine_or_is_known_to_stay(served: Served) -> None:
    num_tokens = 100_000 if served.model.abilities.can_cancel else 3000
    run = served.ask(served.prompt("Write about canals endlessly."), max_tokens=num_tokens, is_endless=True)
    eventually(lambda: served.engine.gauges()["generation_requests"] == 1)
    run.stream.stop()
    if served.model.abilities.can_cancel:
        assert run.end().confirmed == served.model.abilities.takes_stop
        eventually(served.is_idle)  # by itself it would take longer
        assert run.answer.num_tokens < num_tokens
    else:
        assert not run.end().confirmed
        run.close()
        assert served.engine.gauges()["active"] == 1
        eventually(served.is_idle)
    run.close()


def test_a_request_cancelled_in_its_prefill_leaves_the_engine_or_is_known_to_stay(served: Served) -> None:
    can_cancel = served.model.abilities.can_cancel
    run = served.ask(
        served.prompt(f"{REFERENCE[:400_000]} endlessly."),
        max_tokens=30_000 if can_cancel else 50,
        is_endless=True,
    )
    eventually(lambda: served.engine.gauges()["active"] == 1)
    run.stream.stop()
    assert run.end().confirmed == (can_cancel and served.model.abilities.takes_stop)
    if not can_cancel:
        run.close()
        assert served.engine.gauges()["active"] == 1
    eventually(served.is_idle)  # by itself a request that can be cancelled would take longer
    assert run.answer.num_tokens < 1000
    run.close()


def test_a_stream_that_is_cut_leaves_the_engine_or_is_known_to_stay(served: Served) -> None:
    num_tokens = 100_000 if served.model.abilities.notices_cut else 3000
    run = served.ask(served.prompt("Write about valleys endlessly."), max_tokens=num_tokens, is_endless=True)
    eventually(lambda: served.engine.gauges()["generation_requests"] == 1)
    run.close()
    assert not run.end().confirmed
    eventually(served.is_idle)  # long answers by themselves would take longer


def test_a_slow_reader_misses_nothing(served: Served) -> None:
    ids = served.prompt("Write about mountains endlessly.")
    run = served.ask(ids, max_tokens=1200, is_endless=True)
    eventually(lambda: served.engine.gauges()["generation_requests"] == 1)
    eventually(served.is_idle)
    assert run.follow() == Finished(FinishReason.LENGTH)
    assert run.answer.output().text == served.endless(ids, 1200)
    run.close()


def test_a_long_answer_is_whole(served: Served) -> None:
    ids = served.prompt("Write about plains endlessly.")
    run = served.ask(ids, max_tokens=served.long_answer, is_endless=True)
    assert run.follow() == Finished(FinishReason.LENGTH)
    output = run.answer.output()
    assert output.num_tokens == served.long_answer
    assert output.text == served.endless(ids, served.long_answer)
    run.close()


def test_a_prompt_of_400_kb_is_answered(served: Served) -> None:
    ids = served.prompt(REFERENCE[:400_000])
    assert 80_000 < len(ids) < 131_000
    run = served.ask(ids)
    assert run.follow() == Finished(FinishReason.STOP)
    assert run.answer.output().text == served.text(ids)
    run.close()


def test_a_prompt_that_is_too_long_is_refused_for_good(served: Served) -> None:
    run = served.ask(served.prompt("long " * 132_000))
    assert type(run.error()) is EngineError
    run.close()


def test_a_value_that_the_engine_refuses_fails_for_good_and_harms_nothing(served: Served) -> None:
    ids = served.prompt("Write about marshes.")
    bad = served.ask(ids, sampling=Sampling(temperature=1.0, top_p=2.0))
    assert type(bad.error()) is EngineError
    bad.close()
    good = served.ask(ids)
    assert good.follow() == Finished(FinishReason.STOP)
    good.close()


def test_triton_s_generate_endpoint_answers(served: Served) -> None:
    ids = served.prompt("Write about islands.")
    model = served.model
    assert isinstance(served.engine, RunningEngine)
    url = f"http://{LOOPBACK}:{served.engine.launch.http_port}/v2/models/{model.name}/generate"
    answer = httpx2.post(url, json=_body(served, ids), timeout=30).raise_for_status().json()
    gives_ids = model.abilities.gives_ids
    said = served.tokenizer.decode(answer["output_ids"]) if gives_ids else answer["text_output"]
    assert said == served.text(ids)


def test_an_error_mid_stream_is_worth_another_try(failing: Served) -> None:
    ids = failing.prompt("Write about storms endlessly.")
    run = failing.ask(ids, max_tokens=20_000, is_endless=True)
    run.first()
    failing.strike()
    assert isinstance(run.error(), RetryableEngineError)
    output = run.answer.snapshot()
    assert failing.endless(ids, 20_000).startswith(output.text)
    assert run.engine_is_done == failing.model.abilities.reports_own_end
    run.close()
    eventually(failing.is_idle)


def test_a_server_that_dies_ends_every_stream_and_answers_again_once_it_is_back(mortal: Mortal) -> None:
    engine = mortal.server.start()
    entries = mortal.entries()
    ids = entries[0].prompt("Write about deserts endlessly.")
    runs = [each.ask(ids, max_tokens=20_000, is_endless=True) for each in entries]
    eventually(lambda: engine.gauges()["generation_requests"] == len(entries))
    mortal.server.kill()
    for run in runs:
        assert isinstance(run.error(), EngineLostError)
        assert not run.engine_is_done
        run.close()
    mortal.server.start()
    ids = entries[0].prompt("Write about deserts.")
    for each in entries:
        run = each.ask(ids)
        assert run.follow() == Finished(FinishReason.STOP)
        assert run.answer.output().text == each.text(ids)
        run.close()


def _body(served: Served, ids: TokenIds) -> dict[str, object]:
    """Of a request to `generate` for up to 1000 tokens."""
    text = prompt_text(served.tokenizer, ids, adds_bos=served.model.abilities.adds_bos)
    match served.model.kind:
        case "ids":
            limits = {"input_lengths": len(ids), "request_output_len": 1000}
            return {"input_ids": ids.tolist(), **limits, "end_id": served.tokenizer.end_id}
        case "llmapi":
            prefix = "sampling_param_"
            return {
                "text_input": text,
                f"{prefix}max_tokens": 1000,
                f"{prefix}exclude_input_from_output": True,
            }
        case "vllm":
            parameters = json.dumps({"max_tokens": 1000, "temperature": 0})
            return {"text_input": text, "sampling_parameters": parameters, "exclude_input_in_output": True}
        case _:
            return {"text_input": text, "max_tokens": 1000, "bad_words": "", "stop_words": ""}
