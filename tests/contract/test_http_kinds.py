"""Each kind of HTTP engine over a stand-in: what is asked, what is read, what is refused.

vLLM, SGLang, trtllm-serve and the plain endpoint do not run here; see `stand_in_engine`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from entry_points import Asked, ask
from jobs.errors import EngineError, EngineUnableError, RetryableEngineError
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.tokenizer import Tokenizer
from jobs.states import FinishReason
from stand_in_engine import Kind, StandIn, standing_in
from standing_in.kinds import ID_KINDS, KINDS, WHOLE, client_of
from support import eventually
from worker.engine.request import Sampling
from worker.inference.answer import Answer
from worker.inference.outcome import Failed, Finished


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


def asked(server: StandIn, tokenizer: Tokenizer, *, max_tokens: int = 5, **options: Any) -> Asked:  # noqa: ANN401  # of `ask`
    client = client_of(server, **WHOLE)
    try:
        served = client.served()
    finally:
        client.close()
    ids = tokenizer.encode_text("The weather")
    ids = np.concatenate([np.array([tokenizer.bos_id], dtype=np.int32), ids])
    return ask(served, tokenizer, options.pop("ids", ids), max_tokens=max_tokens, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_found_and_its_answer_is_whole(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind) as server:
        run = asked(server, tokenizer)
        assert run.follow() == Finished(FinishReason.LENGTH)
        assert run.engine_is_done
        assert run.answer.num_tokens == 5
        if isinstance(run.answer, Answer):
            assert list(run.answer.ids) == [1000, 1001, 1002, 1003, 1004]
        else:
            assert run.answer.output().text == "a b c d e "
        run.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_of_5000_tokens_is_whole(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind, repeats=False) as server:  # all ids so far in each event would be 75 MB
        run = asked(server, tokenizer, max_tokens=5000)
        assert run.follow() == Finished(FinishReason.LENGTH)
        assert run.engine_is_done
        assert run.answer.num_tokens == 5000
        run.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_string_ends_the_answer_before_it(kind: Kind, tokenizer: Tokenizer) -> None:
    whole = tokenizer.decode(list(range(1000, 1012)))
    stop = "e " if kind == "openai" else whole[-4:]
    with standing_in(kind, stops_after=4 if kind == "openai" else 12) as server:
        run = asked(server, tokenizer, max_tokens=100, stops=[stop])
        assert run.follow() == Finished(FinishReason.STOP)
        assert run.engine_is_done
        assert run.answer.output().text == ("a b c d " if kind == "openai" else whole[: whole.find(stop)])
        run.close()


def test_deltas_of_sglang_s_incremental_output_are_read_too(tokenizer: Tokenizer) -> None:
    with standing_in("sglang", repeats=False) as server:
        run = asked(server, tokenizer)
        assert run.follow() == Finished(FinishReason.LENGTH)
        assert isinstance(run.answer, Answer)
        assert list(run.answer.ids) == [1000, 1001, 1002, 1003, 1004]
        run.close()


def test_a_kind_that_is_not_told_names_the_setting() -> None:
    with standing_in("openai") as server:
        client = client_of(server, kind="auto")
        with pytest.raises(EngineError, match="LONGBATCH_ENGINE__KIND"):
            client.served()
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_is_sent_in_the_fields_of_the_kind(kind: Kind, tokenizer: Tokenizer) -> None:
    top_k = None if kind == "openai" else 40
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=top_k, seed=2**63 + 5)
    with standing_in(kind) as server:
        run = asked(server, tokenizer, sampling=sampling, stops=["x", "yz"])
        assert isinstance(run.follow(), Finished)
        run.close()
        body = server.asked()
    found = body["sampling_params"] if kind == "sglang" else body
    assert (found["temperature"], found["top_p"], found["stop"]) == (0.7, 0.9, ["x", "yz"])
    assert body["stream"] is True
    assert found["max_new_tokens" if kind == "sglang" else "max_tokens"] == 5
    if kind == "openai":
        assert body["prompt"] == "The weather"
    else:
        assert found["top_k"] == 40
        assert found["stop_token_ids"] == [tokenizer.end_id]
        assert found["ignore_eos"] is False
        assert body["input_ids" if kind == "sglang" else "prompt"][0] == tokenizer.bos_id
    match kind:
        case "vllm":
            assert body["return_token_ids"] is True
            assert body["seed"] == 5
        case "trtllm-serve":
            assert body["detokenize"] is False
            assert body["add_special_tokens"] is False
        case "sglang":
            assert body["rid"]


@pytest.mark.parametrize("parameter", ["top_k", "min_tokens"])
def test_a_parameter_that_the_kind_does_not_take_is_refused_by_name(
    parameter: str, tokenizer: Tokenizer
) -> None:
    wanted = Sampling(temperature=0.7, top_k=3) if parameter == "top_k" else Sampling(min_tokens=3)
    with standing_in("openai") as server:
        with pytest.raises(EngineUnableError) as caught:
            asked(server, tokenizer, sampling=wanted)
        run = asked(
            server, tokenizer, sampling=Sampling(temperature=0.7, top_k=1)
        )  # greedy: it needs no top_k
        assert isinstance(run.follow(), Finished)
        run.close()
        bodies = [body for path, body in server.bodies]
    message = caught.value.message
    assert message.startswith(
        f"The engine of the model 'served', of the kind openai, does not take {parameter}"
    )
    assert message.endswith("It takes frequency_penalty, presence_penalty, temperature, top_p.")
    assert (caught.value.code, caught.value.retryable) == ("unsupported_parameter", False)
    assert [body["temperature"] for body in bodies] == [0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_of_a_request_is_in_its_body_or_declared_as_lacking(
    kind: Kind, tokenizer: Tokenizer
) -> None:
    """None is dropped in silence."""
    wanted: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_tokens": 3, "min_p": 0.1}
    wanted |= {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.1}
    wanted |= {"logit_bias": ((7, -100.0),), "bad_words": ("no",)}
    with standing_in(kind) as server:
        client = client_of(server, **WHOLE)
        lacks = client.served().abilities.lacks
        client.close()
        taken = {name: value for name, value in wanted.items() if name not in lacks}
        run = asked(server, tokenizer, sampling=Sampling(**taken))
        run.follow()
        run.close()
        body = server.asked()
    found = body["sampling_params"] if kind == "sglang" else body
    names = {"min_tokens": "min_new_tokens"} if kind == "sglang" else {}
    sent = {"logit_bias": {"7": -100.0}, "bad_words": ["no"]}
    assert {name: found.get(names.get(name, name)) for name in taken} == taken | {
        name: value for name, value in sent.items() if name in taken
    }
    assert not {name for name in wanted if name not in taken and name in found}


@pytest.mark.parametrize("kind", ID_KINDS)
def test_an_answer_ends_before_a_token_that_its_caller_named(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind, pace=0.01) as server:
        run = asked(server, tokenizer, max_tokens=1000, sampling=Sampling(stop_token_ids=(1003,)))
        assert run.follow() == Finished(FinishReason.STOP)
        assert isinstance(run.answer, Answer)
        assert list(run.answer.ids) == [1000, 1001, 1002]
        run.stream.cancel()
        run.close()
        body = server.asked()
    found = body["sampling_params"] if kind == "sglang" else body
    assert found["stop_token_ids"] == [tokenizer.end_id, 1003]


FORMS = (
    Guide(GuideKind.JSON, '{"type":"object"}'),
    Guide(GuideKind.REGEX, "a+"),
    Guide(GuideKind.CHOICE, '["a","b"]'),
    Guide(GuideKind.GRAMMAR, "root ::= x"),
)
CHOICES = 'root ::= "a" | "b"'
JSON_OF_VLLM = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
}
FIELDS_OF_FORMS: Mapping[Kind, Sequence[Mapping[str, Any]]] = {
    "vllm": [
        {"response_format": JSON_OF_VLLM},
        {"structured_outputs": {"regex": "a+"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"grammar": "root ::= x"}},
    ],
    "sglang": [
        {"json_schema": '{"type":"object"}'},
        {"regex": "a+"},
        {"ebnf": CHOICES},
        {"ebnf": "root ::= x"},
    ],
    "trtllm-serve": [
        {"response_format": {"type": "json", "schema": {"type": "object"}}},
        {"response_format": {"type": "regex", "regex": "a+"}},
        {"response_format": {"type": "ebnf", "ebnf": CHOICES}},
        {"response_format": {"type": "ebnf", "ebnf": "root ::= x"}},
    ],
}


@pytest.mark.parametrize("kind", ID_KINDS)
def test_a_form_is_asked_for_in_the_fields_of_the_kind(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind) as server:
        for form in FORMS:
            run = asked(server, tokenizer, guide=form)
            assert isinstance(run.follow(), Finished)
            run.close()
        bodies = [body for path, body in server.bodies]
    for body, wanted in zip(bodies, FIELDS_OF_FORMS[kind], strict=True):
        found = body["sampling_params"] if kind == "sglang" else body
        names = {"response_format", "structured_outputs", "json_schema", "regex", "ebnf"}
        assert {name: value for name, value in found.items() if name in names} == wanted


@pytest.mark.parametrize("form", FORMS)
def test_a_text_endpoint_is_asked_for_no_form(form: Guide, tokenizer: Tokenizer) -> None:
    with standing_in("openai") as server:
        with pytest.raises(EngineUnableError, match=form.kind):
            asked(server, tokenizer, guide=form)
        assert server.bodies == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_greedy_request_draws_nothing(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind) as server:
        run = asked(server, tokenizer, is_endless=kind != "openai")
        run.follow()
        run.close()
        body = server.asked()
    found = body["sampling_params"] if kind == "sglang" else body
    assert found["temperature"] == 0.0
    assert not {"seed", "sampling_seed", "top_p"} & set(found)
    if kind != "openai":
        assert found["ignore_eos"] is True
        assert "stop_token_ids" not in found


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_request_leaves_the_engine(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind, pace=0.02) as server:
        run = asked(server, tokenizer, max_tokens=100_000)
        run.first()
        run.stream.stop()
        assert run.end().confirmed == (kind == "sglang")  # it aborts by id, and says so
        eventually(lambda: server.left)
        assert (server.bodies[-1][0] == "/abort_request") == (kind == "sglang")
        run.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_stopped_in_its_prefill_leaves_the_engine(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind, pace=0.02, is_reading=True) as server:
        run = asked(server, tokenizer)
        eventually(lambda: server.running == 1)
        run.stream.stop()
        assert run.end().confirmed == (kind == "sglang")
        eventually(lambda: server.left)
        assert not run.answer.num_tokens
        run.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_stream_leaves_the_engine(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind, pace=0.02) as server:
        run = asked(server, tokenizer, max_tokens=100_000)
        run.first()
        run.close()
        assert not run.end().confirmed
        eventually(lambda: server.left)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_event_is_worth_another_try(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind, fails_after=2) as server:
        run = asked(server, tokenizer)
        outcome = run.follow()
        assert isinstance(outcome, Failed)
        assert type(outcome.error) is RetryableEngineError
        assert outcome.error.said == "the engine broke"
        assert run.engine_is_done == (kind != "openai")
        assert run.answer.num_tokens
        run.close()


@pytest.mark.parametrize("kind", ID_KINDS)
def test_a_clamped_answer_is_no_success(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind, limit=3) as server:
        run = asked(server, tokenizer)
        outcome = run.follow()
        assert isinstance(outcome, Failed)
        assert type(outcome.error) is EngineError
        assert "3 of 5 tokens" in outcome.error.message
        run.close()


@pytest.mark.parametrize("ids", [[10**8], [5] * 131_073], ids=["bad", "too long"])
@pytest.mark.parametrize("kind", ID_KINDS)
def test_a_bad_request_fails_for_good_where_a_400_proves_it(
    kind: Kind, ids: list[int], tokenizer: Tokenizer
) -> None:
    if kind == "sglang":
        ids = [*ids, *[5] * 131_073]  # it does not compare ids with its vocabulary
    with standing_in(kind) as server:
        run = asked(server, tokenizer, ids=np.array(ids, dtype=np.int32))
        outcome = run.follow()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, EngineError)
        assert outcome.error.retryable == (kind == "trtllm-serve")
        assert run.engine_is_done
        run.close()


@pytest.mark.parametrize(
    ("num_tokens", "sampling"),
    [(3, Sampling(temperature=1, top_p=5)), (8_000, Sampling())],
    ids=["bad", "too long"],
)
def test_a_text_endpoint_s_400_fails_a_request_for_good(
    num_tokens: int, sampling: Sampling, tokenizer: Tokenizer
) -> None:
    (word,) = tokenizer.encode_text(" responsibilities").tolist()
    ids = np.array([tokenizer.bos_id, *[word] * num_tokens], dtype=np.int32)
    with standing_in("openai") as server:
        run = asked(server, tokenizer, ids=ids, sampling=sampling)
        outcome = run.follow()
        assert isinstance(outcome, Failed)
        assert (type(outcome.error), run.engine_is_done) == (EngineError, True)
        run.close()
