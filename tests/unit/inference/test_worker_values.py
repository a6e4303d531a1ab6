"""The pure parts of a worker: answers, deadlines, gauges and tensors."""

import json
from dataclasses import replace
from typing import Literal, Never

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2

from jobs.answers.log_probs import Score
from jobs.errors import EngineUnableError
from jobs.ids import uuid7
from jobs.models import Job
from jobs.prompts.abilities import GUIDED, LORA, PENALTIES, SCORED
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import TritonSettings
from jobs.states import FinishReason
from support import CAPACITY
from worker.engine.abilities import abilities_finding
from worker.engine.deadlines import FLOOR_SECONDS, deadlines_for
from worker.engine.deltas import TokenDelta
from worker.engine.engine import ServedModel
from worker.engine.exposition import parse
from worker.engine.gauges import Gauges
from worker.engine.request import Request, Sampling
from worker.engine.triton.adapter import Adapter, Kind
from worker.engine.triton.ids import IdsAdapter, stop_tensors
from worker.engine.triton.llmapi import LlmapiAdapter
from worker.engine.triton.metrics import gauges_of
from worker.engine.triton.model_config import Offer, adapter_for
from worker.engine.triton.text import TextAdapter
from worker.engine.triton.vllm import VllmAdapter
from worker.inference.answer import Answer
from worker.inference.sampling import sampling_of

DIRECT = IdsAdapter(
    "tensorrt_llm",
    frozenset(
        {
            *("input_ids", "input_lengths", "request_output_len", "streaming", "end_id", "pad_id"),
            *("temperature", "runtime_top_k", "runtime_top_p", "random_seed", "min_length"),
        }
    ),
)


def text_adapter(kind: Literal["ensemble", "bls"], inputs: set[str]) -> TextAdapter:
    return TextAdapter(
        model_name=kind,
        inputs=frozenset(inputs),
        kind=kind,
        engine_name="tensorrt_llm",
        adds_bos=False,
        is_streaming=False,
        accumulates=False,
        takes_stop=True,
    )


def request_of(sampling: Sampling) -> Request:
    return Request("id", np.array([1, 2, 3], dtype=np.int32), 5, 2, 2, sampling)


def test_an_answer_counts_up_to_the_token_that_completed_its_stop_string(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_text("one two three four five").tolist()
    answer = Answer(tokenizer, max_tokens=100, stops=["three"])
    answer.push(ids)
    output = answer.output()
    assert answer.finish_reason is FinishReason.STOP
    assert output.text == "one two "
    assert output.num_tokens == tokenizer.count_text("one two three")


def test_an_answer_ends_at_any_end_token_of_the_model_and_does_not_count_it(tokenizer: Tokenizer) -> None:
    other_end = next(each for each in tokenizer.eos_ids if each != tokenizer.end_id)
    answer = Answer(tokenizer, max_tokens=100)
    answer.push([*tokenizer.encode_text("done").tolist(), other_end, 1000])
    assert (answer.finish_reason, answer.output().text) == (FinishReason.STOP, "done")


def test_an_answer_never_has_more_than_max_tokens(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, max_tokens=3)
    answer.push(range(1000, 1010))
    output = answer.output()
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.finish() is FinishReason.LENGTH
    assert list(output.ids) == [1000, 1001, 1002]


def test_an_answer_can_be_stored_whatever_the_model_wrote(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, max_tokens=100)
    answer.push(tokenizer.encode_text("a\x00b").tolist())
    output = answer.output()
    assert (output.text, output.replaced) == ("a\ufffdb", True)


def test_text_held_back_for_a_stop_string_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, max_tokens=100, stops=["five hundred"])
    answer.push(tokenizer.encode_text("four five").tolist())
    answer.finish()
    assert answer.output().text == "four five"


def test_deadlines_grow_with_the_prefill_that_may_run_beside_a_job() -> None:
    small = deadlines_for(prompt_tokens=10, max_tokens=10, capacity=CAPACITY)
    large = deadlines_for(prompt_tokens=96_000, max_tokens=10, capacity=CAPACITY)
    # An A6000 reads 96k tokens in about 50 s, and may do so before a small job's first token.
    assert small.first_token > 60
    assert large.first_token > 60
    assert small.between_tokens > large.between_tokens > FLOOR_SECONDS
    assert small.total > small.first_token


def test_a_faster_engine_has_shorter_deadlines_but_never_none() -> None:
    fast = deadlines_for(prompt_tokens=96_000, max_tokens=1000, capacity=CAPACITY, time_scale=1000)
    assert FLOOR_SECONDS <= fast.between_tokens < fast.first_token < fast.total < 20


def test_gauges_are_read_whatever_the_order_of_labels() -> None:
    text = """
# HELP nv_trt_llm_request_metrics x
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 3
nv_trt_llm_request_metrics{request_type="max",version="1",model="tensorrt_llm"} 4
nv_trt_llm_request_metrics{model="other",request_type="active",version="1"} 9
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 2048
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1.5e2
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
"""
    found = gauges_of(parse(text, "nv_trt_llm_"), "tensorrt_llm")
    assert found == Gauges(
        active_requests=3, max_requests=4, max_blocks=2048, used_blocks=150, tokens_per_block=64
    )
    assert found.free_blocks == 1898


def test_a_server_without_these_gauges_has_none() -> None:
    assert gauges_of(parse("nv_inference_count 3\n", "nv_trt_llm_"), "tensorrt_llm") is None


ALL = {"runtime_top_k": 0, "runtime_top_p": 1.0}


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), {"runtime_top_k": 1}),
        (Sampling(temperature=1e-7), {"runtime_top_k": 1}),
        (Sampling(temperature=0.5, top_k=1), {"runtime_top_k": 1}),
        (Sampling(temperature=0.5, top_p=0), {"runtime_top_k": 1}),
        (Sampling(top_p=0.9, top_k=5), {"runtime_top_k": 1}),
        (Sampling(temperature=0.5), {"temperature": 0.5, **ALL}),
        (Sampling(temperature=0.5, top_p=0.25), {"temperature": 0.5, **ALL, "runtime_top_p": 0.25}),
        (Sampling(temperature=1.0, top_k=5), {"temperature": 1.0, **ALL, "runtime_top_k": 5}),
        (Sampling(temperature=1.0, seed=7), {"temperature": 1.0, **ALL, "random_seed": 7}),
        (Sampling(seed=7), {"runtime_top_k": 1, "random_seed": 7}),
    ],
)
def test_sampling_becomes_tensorrt_llm_s_tensors(sampling: Sampling, expected: dict[str, float]) -> None:
    tensors = DIRECT.tensors(request_of(sampling))
    picking = {"temperature", "runtime_top_k", "runtime_top_p", "random_seed"} & tensors.keys()
    assert {name: tensors[name].item() for name in picking} == expected
    assert tensors["input_ids"].tolist() == [[1, 2, 3]]
    assert {value.ndim for value in tensors.values()} == {2}


@pytest.mark.parametrize("kind", ["ensemble", "bls"])
def test_a_text_model_gets_top_p_with_top_k(kind: Literal["ensemble", "bls"]) -> None:
    adapter = text_adapter(kind, {"temperature", "top_k", "top_p", "seed"})
    tensors = adapter.tensors(request_of(Sampling(temperature=0.5, seed=7)))
    told = {name: value.item() for name, value in tensors.items()}
    assert told == {"temperature": 0.5, "top_k": 0, "top_p": 1.0, "seed": 7}
    assert {name: value.item() for name, value in adapter.tensors(request_of(Sampling())).items()} == {
        "top_k": 1
    }


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), {"temperature": 0.0}),
        (Sampling(top_p=0.9, top_k=5, seed=7), {"temperature": 0.0}),
        (Sampling(temperature=0.5, top_p=0), {"temperature": 0.0}),
        (Sampling(temperature=0.5, seed=7), {"temperature": 0.5, "seed": 7}),
        (Sampling(temperature=1.0, top_p=0.9, top_k=5), {"temperature": 1.0, "top_p": 0.9, "top_k": 5}),
        (Sampling(temperature=1.0, seed=2**64 - 1), {"temperature": 1.0, "seed": 2**63 - 1}),
    ],
)
def test_sampling_becomes_vllm_s_parameters(sampling: Sampling, expected: dict[str, float]) -> None:
    adapter = VllmAdapter("vllm_model", frozenset({"sampling_parameters"}))
    raw = adapter.tensors(request_of(sampling))["sampling_parameters"].item()
    assert json.loads(raw) == {"max_tokens": 5, **expected}


@pytest.mark.parametrize(
    ("word", "reason", "given_up"),
    [
        ("stop", FinishReason.STOP, None),
        ("length", FinishReason.LENGTH, None),
        ("None", None, None),
        ("abort", None, "abort"),
        ("cancelled", None, "cancelled"),
    ],
)
def test_an_answer_that_the_engine_gave_up_is_told_from_a_complete_one(
    word: str, reason: FinishReason | None, given_up: str | None
) -> None:
    def element(text: str) -> bytes:
        return len(text).to_bytes(4, "little") + text.encode()

    adapters = (VllmAdapter("vllm_model", frozenset()), LlmapiAdapter("m", frozenset(), is_streaming=True))
    for adapter in adapters:
        delta = adapter.delta({"text_output": element("So far"), "finish_reason": element(word)})
        assert delta is not None
        assert (delta.text, delta.reason, delta.given_up) == ("So far", reason, given_up)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), {"top_k": 1}),
        (Sampling(top_p=0.9, top_k=5, seed=7), {"top_k": 1}),
        (Sampling(temperature=0.5, seed=7), {"temperature": 0.5, "top_k": 0, "top_p": 1.0, "seed": 7}),
        (Sampling(temperature=1.0, top_p=0.25, top_k=5), {"temperature": 1.0, "top_k": 5, "top_p": 0.25}),
    ],
)
def test_sampling_becomes_llmapi_s_tensors(sampling: Sampling, expected: dict[str, float]) -> None:
    prefix = "sampling_param_"
    names = frozenset(f"{prefix}{each}" for each in ("temperature", "top_k", "top_p", "seed"))
    tensors = LlmapiAdapter("tensorrt_llm", names, is_streaming=True).tensors(request_of(sampling))
    assert {name.removeprefix(prefix): value.item() for name, value in tensors.items()} == expected
    assert {value.shape for value in tensors.values()} == {(1,)}


def test_seed_and_least_length_have_the_names_that_the_model_declares() -> None:
    asked = request_of(Sampling(seed=7, min_tokens=3))
    older = DIRECT.tensors(asked)
    newer = IdsAdapter(
        "tensorrt_llm", (DIRECT.inputs - {"random_seed", "min_length"}) | {"seed", "min_tokens"}
    )
    assert (older["random_seed"].item(), older["min_length"].item()) == (7, 3)
    assert {"random_seed", "min_length"}.isdisjoint(newer.tensors(asked))
    assert newer.tensors(asked)["seed"].dtype == np.uint64
    assert newer.tensors(asked)["min_tokens"].item() == 3


def served_by(adapter: Adapter) -> ServedModel:
    def prepared(_: Request) -> Never:
        raise LookupError

    return ServedModel(adapter.kind, adapter.model_name, adapter.abilities, prepared)


def without_top_p(kind: Kind) -> Adapter:
    if kind == "llmapi":
        names = ("temperature", "top_k", "seed", "min_tokens")
        return LlmapiAdapter("m", frozenset(f"sampling_param_{each}" for each in names), is_streaming=True)
    if kind == "ids":
        return IdsAdapter("m", DIRECT.inputs - {"runtime_top_p"})
    return text_adapter("ensemble", {"temperature", "top_k", "seed", "min_length"})


@pytest.mark.parametrize("kind", ["ids", "ensemble", "llmapi"])
@pytest.mark.parametrize("sampling", [Sampling(temperature=1, seed=3), Sampling(temperature=0.5)])
def test_a_model_without_top_p_which_is_greedy_then_refuses_to_draw(kind: Kind, sampling: Sampling) -> None:
    model = served_by(without_top_p(kind))
    with pytest.raises(EngineUnableError) as caught:
        model.call(request_of(sampling))
    assert "does not take top_p: it always picks the most likely token, so set temperature to 0" in (
        caught.value.message
    )
    for answerable in (Sampling(), Sampling(temperature=1, top_k=40)):
        with pytest.raises(LookupError):
            model.call(request_of(answerable))


def test_log_probabilities_and_adapters_are_declared_by_a_model_s_inputs() -> None:
    extras = frozenset({"return_log_probs", "presence_penalty", "lora_task_id"})
    llmapi = frozenset({"sampling_param_frequency_penalty", "lora_id"})
    known: list[tuple[Adapter, set[str]]] = [
        (IdsAdapter("m", DIRECT.inputs), {"lora", "logprobs", "top_logprobs"}),
        (IdsAdapter("m", DIRECT.inputs | extras), {"lora", "top_logprobs"}),
        (text_adapter("bls", {"return_log_probs"}), {"lora", "logprobs", "top_logprobs"}),
        (VllmAdapter("m", frozenset({"return_logprobs"})), {"lora", "logprobs", "top_logprobs"}),
        (LlmapiAdapter("m", frozenset(), is_streaming=True), {"lora", "logprobs", "top_logprobs"}),
        (LlmapiAdapter("m", llmapi, is_streaming=True), {"lora", "logprobs", "top_logprobs"}),
    ]
    found = [adapter.abilities.lacks & ({LORA} | SCORED) for adapter, _ in known]
    assert found == [lacks for _, lacks in known]


def test_log_probabilities_of_tensorrt_llm_are_of_a_response_or_of_all_so_far() -> None:
    adapter = IdsAdapter("m", DIRECT.inputs | {"return_log_probs"})
    request = replace(request_of(Sampling()), num_top=0)
    assert adapter.tensors(request)["return_log_probs"].tolist() == [[True]]
    assert "return_log_probs" not in adapter.tensors(request_of(Sampling()))
    ids = np.array([5, 6], dtype=np.int32).tobytes()
    for told in ([-1.5, -2.0], [-9.0, -1.5, -2.0]):
        outputs = {"output_ids": ids, "output_log_probs": np.array(told, dtype=np.float32).tobytes()}
        assert adapter.delta(outputs) == TokenDelta([5, 6], [Score(-1.5), Score(-2.0)])
    with pytest.raises(ValueError, match="1 log probabilities for 2 tokens"):
        adapter.delta({"output_ids": ids, "output_log_probs": np.zeros(1, dtype=np.float32).tobytes()})


GUIDE_INPUTS = {"guided_decoding_guide_type", "guided_decoding_guide"}


@pytest.mark.parametrize(
    ("guide", "kind", "content"),
    [
        (Guide(GuideKind.JSON, '{"type":"object"}'), b"json_schema", b'{"type":"object"}'),
        (Guide(GuideKind.REGEX, "a+"), b"regex", b"a+"),
        (Guide(GuideKind.CHOICE, '["a"]'), b"ebnf_grammar", b'root ::= "a"'),
        (Guide(GuideKind.GRAMMAR, "root ::= x"), b"ebnf_grammar", b"root ::= x"),
    ],
)
def test_a_form_becomes_tensorrt_llm_s_inputs(guide: Guide, kind: bytes, content: bytes) -> None:
    request = replace(request_of(Sampling()), guide=guide)
    direct = IdsAdapter("m", DIRECT.inputs | GUIDE_INPUTS)
    for adapter in (direct, text_adapter("ensemble", {"text_input", *GUIDE_INPUTS})):
        tensors = adapter.tensors(request)
        assert [tensors[name].tolist() for name in sorted(GUIDE_INPUTS, reverse=True)] == [
            [[kind]],
            [[content]],
        ]
        assert not adapter.abilities.lacks & GUIDED
        assert not GUIDE_INPUTS & set(adapter.tensors(request_of(Sampling())))
    with pytest.raises(EngineUnableError, match=guide.kind):
        served_by(DIRECT).call(request)


@pytest.mark.parametrize(("backend", "is_set_up"), [("xgrammar", True), ("", False), ("${guided}", False)])
def test_an_engine_that_was_not_set_up_to_guide_is_not_asked_to(backend: str, is_set_up: bool) -> None:  # noqa: FBT001
    config = model_config_pb2.ModelConfig(name="tensorrt_llm")
    config.model_transaction_policy.decoupled = True
    config.parameters["guided_decoding_backend"].string_value = backend
    for name in DIRECT.inputs | GUIDE_INPUTS:
        config.input.add(name=name)
    adapter = adapter_for(Offer(config, config), TritonSettings())
    assert (adapter.abilities.lacks & GUIDED == frozenset()) == is_set_up


def test_a_stand_in_is_not_asked_for_what_it_does_nothing_with() -> None:
    config = model_config_pb2.ModelConfig(name="tensorrt_llm")
    config.model_transaction_policy.decoupled = True
    for name in DIRECT.inputs | PENALTIES.keys():
        config.input.add(name=name)
    assert not adapter_for(Offer(config, config), TritonSettings()).abilities.lacks & PENALTIES.keys()
    config.parameters["unsupported_inputs"].string_value = ",".join(PENALTIES)
    assert adapter_for(Offer(config, config), TritonSettings()).abilities.lacks >= PENALTIES.keys()


@pytest.mark.parametrize(
    ("window", "blocks", "in_slot", "status", "words"),
    [
        (0, None, False, "ok", "is not told, and nothing is reserved"),
        (4096, None, False, "warning", "a window of 4096 tokens, of which nothing is reserved"),
        (4096, 0, False, "ok", "0 blocks a sequence, as set"),
        (4096, 9, False, "ok", "9 blocks a sequence, as set"),
        (0, None, True, "ok", "are part of the slot"),
    ],
)
def test_windows_and_states_that_nothing_is_reserved_for_are_warned_of(
    *, window: int, blocks: int | None, in_slot: bool, status: str, words: str
) -> None:
    abilities = replace(DIRECT.abilities, window=window, keeps_state_in_slot=in_slot)
    found = abilities_finding(abilities, configured=blocks)
    assert (found.status, words in found.detail) == (status, True)
    assert bool(found.advice) == (status == "warning")


def test_a_request_to_stop_has_the_inputs_that_the_model_insists_on() -> None:
    assert set(stop_tensors()) == {"stop", "input_ids", "input_lengths", "request_output_len"}


@pytest.mark.parametrize(
    ("start", "max_tokens", "expected"),
    [(0, 500, 100), (0, 64, 64), (64, 64, 36), (100, 64, 0), (300, 64, 0)],
)
def test_a_segment_needs_only_what_is_left_of_the_minimum(start: int, max_tokens: int, expected: int) -> None:
    """A minimum above the request's own maximum is a bad request to vLLM."""
    job = Job(id=uuid7(), attempt=0, sampling={"min_tokens": 100})
    assert sampling_of(job, start=start, max_tokens=max_tokens).min_tokens == expected
    job.sampling = {}
    assert sampling_of(job, start=start, max_tokens=max_tokens).min_tokens is None
