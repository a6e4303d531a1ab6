"""What is peculiar to `llmapi`: it is known by its tensors, and its capacity is told."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import model_config_pb2

from cli.stack.engine_urls import EngineUrls
from cli.stack.errors import StackError
from cli.stack.found_engines import find_engines
from cli.stack.ports import LOOPBACK
from cli.stack.servers.engine_options import EngineOptions
from entry_points import Served, settings_of
from jobs.diagnostics import Finding
from jobs.errors import EngineError, EngineUnableError, RetryableEngineError
from jobs.prompts.tokenizer import TokenIds, Tokenizer
from jobs.settings import EngineSettings, EngineSide, TritonSettings
from jobs.states import FinishReason
from local_engine import RunningEngine, engine_module, prepared_launch, running_engine, running_server
from support import eventually
from worker.engine import loop
from worker.engine.client import EngineClient
from worker.engine.deltas import CachedPrompt, EngineDelta
from worker.engine.probe import inspect as inspect_engine
from worker.engine.request import Request, Sampling, WantedAdapter, prompt_text
from worker.engine.triton.errors import stream_error
from worker.engine.triton.model_config import Offer, adapter_for, read_offer
from worker.inference.outcome import Failed, Finished

MODEL = "llmapi"


@pytest.fixture(scope="module")
def options(tokenizer_dir: Path) -> EngineOptions:
    return EngineOptions(
        mode="oracle", tokenizer_dir=tokenizer_dir, time_scale=40, tokens_per_response=1, llmapi=True
    )


@pytest.fixture(scope="module")
def decoupled(tmp_path_factory: pytest.TempPathFactory, options: EngineOptions) -> Iterator[RunningEngine]:
    with running_engine(tmp_path_factory.mktemp("decoupled"), options) as engine:
        yield engine


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, options: EngineOptions) -> Iterator[RunningEngine]:
    """As NVIDIA's quick start leaves it: not decoupled."""
    with running_engine(tmp_path_factory.mktemp("whole"), replace(options, llmapi_decoupled=False)) as engine:
        yield engine


def served_by(engine: RunningEngine, tokenizer: Tokenizer) -> Served:
    def says(prompt: TokenIds) -> list[int]:
        return tokenizer.encode_text(engine_module("oracle").expected_text(prompt.tolist())).tolist()

    found = Served.on(engine, MODEL, tokenizer, says=says)
    eventually(found.is_idle)
    return found


def with_nothing_told(engine: RunningEngine) -> EngineSide:
    return settings_of(engine, MODEL).model_copy(update={"engine": EngineSettings()})


def found_by_probe(side: EngineSide, tokenizer: Tokenizer) -> dict[str, Finding]:
    client = {each.name: each for each in inspect_engine(side, tokenizer)}
    assert client["server"].status == "ok"
    return client


def config_of(name: str, *inputs: str, decoupled: bool = True) -> model_config_pb2.ModelConfig:
    return model_config_pb2.ModelConfig(
        name=name,
        input=[model_config_pb2.ModelInput(name=each) for each in inputs],
        model_transaction_policy=model_config_pb2.ModelTransactionPolicy(decoupled=decoupled),
    )


def test_it_is_known_by_its_tensors_under_the_name_of_the_other_engine() -> None:
    asked: list[str] = []

    async def config(name: str) -> model_config_pb2.ModelConfig:
        asked.append(name)
        return config_of(name, "text_input", "sampling_param_max_tokens", "streaming", "stop")

    offer = asyncio.run(read_offer("tensorrt_llm", config))
    assert offer is not None
    adapter = adapter_for(offer, TritonSettings())
    assert (adapter.kind, adapter.model_name) == ("llmapi", "tensorrt_llm")
    assert asked == ["tensorrt_llm"]  # there are no models around it
    assert adapter.abilities.takes_stop


def test_an_adapter_is_named_by_its_number_name_and_directory() -> None:
    inputs = ("text_input", "sampling_param_max_tokens", "lora_id", "lora_name", "lora_path")
    entry = config_of("tensorrt_llm", *inputs)
    adapter = adapter_for(Offer(entry, entry), TritonSettings())
    assert "lora" in adapter.abilities.takes
    wanted = WantedAdapter("legal", 7, "peft", "/models/legal", b"")
    request = Request("a", np.array([5], dtype=np.int32), 3, 2, 2, text="five", adapter=wanted)
    tensors = adapter.tensors(request)
    assert tensors["lora_id"].tolist() == [7]
    assert tensors["lora_id"].dtype == np.dtype(np.uint64)
    assert (tensors["lora_name"].tolist(), tensors["lora_path"].tolist()) == ([b"legal"], [b"/models/legal"])
    for other in (replace(wanted, format="gguf"), replace(wanted, source="s3://bucket/legal")):
        with pytest.raises(EngineUnableError, match="from a directory in PEFT's form"):
            adapter.tensors(replace(request, adapter=other))


def test_the_stand_in_declares_adapters_and_has_none(
    decoupled: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    assert "lora" in served_by(decoupled, served_tokenizer).model.abilities.lacks


def test_it_says_what_it_had_of_a_prompt(decoupled: RunningEngine, served_tokenizer: Tokenizer) -> None:
    served = served_by(decoupled, served_tokenizer)
    ids = served.prompt("Write about orchards. " * 200)
    request = Request(
        "a", ids, 3, served_tokenizer.end_id, 2, text=prompt_text(served_tokenizer, ids, adds_bos=True)
    )
    found: list[int] = []
    for number in range(2):
        told: list[EngineDelta] = []
        call = served.model.call(replace(request, request_id=f"a{number}"))
        end = loop.run(call.run(told.append, sent=lambda: None))
        loop.run(call.close())
        assert end.error is None
        found += [each.blocks for each in told if isinstance(each, CachedPrompt)]
    assert found[0] == 0
    assert found[1] > 10


def test_another_model_is_not_called_as_llmapi() -> None:
    entry = config_of("tensorrt_llm", "input_ids", "input_lengths", "request_output_len", "streaming")
    with pytest.raises(EngineError, match="does not take sampling_param_max_tokens, text_input"):
        adapter_for(Offer(entry, entry), TritonSettings(adapter="llmapi"))


@pytest.mark.parametrize(("newer", "is_streaming"), [((), False), (("lora_id",), True)])
def test_a_decoupled_model_of_a_release_without_adapters_answers_whole(
    newer: tuple[str, ...],
    *,
    is_streaming: bool,
) -> None:
    """Seen on NVIDIA's model files: before they took adapters, the LLM API did not learn of `streaming`."""
    inputs = ("text_input", "sampling_param_max_tokens", "streaming", "stop", *newer)
    entry = config_of("tensorrt_llm", *inputs)
    adapter = adapter_for(Offer(entry, entry), TritonSettings())
    assert adapter.abilities.is_streaming == is_streaming
    assert adapter.abilities.takes_stop, "a stopped request is answered only if it asked for a stream"
    request = Request("a", np.array([5], dtype=np.int32), 3, 2, 2, text="five")
    assert adapter.tensors(request)["streaming"].tolist() == [True]


def test_a_model_without_a_stop_request_is_cut() -> None:
    entry = config_of("tensorrt_llm", "text_input", "sampling_param_max_tokens", "streaming")
    adapter = adapter_for(Offer(entry, entry), TritonSettings(adapter="llmapi"))
    assert not adapter.abilities.takes_stop
    assert adapter.abilities.notices_cut


def test_a_capacity_that_nobody_told_is_refused_with_the_settings_that_tell_it(
    decoupled: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    side = with_nothing_told(decoupled)
    client = EngineClient(side.triton, side.engine, end_id=served_tokenizer.end_id)
    with closing(client), pytest.raises(EngineError) as refused:
        client.describe()
    for name in ("MAX_BLOCKS", "TOKENS_PER_BLOCK", "MAX_BATCH_SIZE", "MAX_SEQ_LEN"):
        assert f"LONGBATCH_ENGINE__{name}" in refused.value.message


def test_up_refuses_a_capacity_that_nobody_told_and_names_its_flags(
    decoupled: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGBATCH_TRITON__MODEL_NAME", MODEL)
    url = f"grpc://{LOOPBACK}:{decoupled.launch.grpc_port}"
    with pytest.raises(StackError) as refused:
        find_engines(EngineUrls(urls=(url,)), os.environ)
    assert refused.value.message.startswith(
        f"{url} does not report its whole capacity: add --engine-slots N (requests at once)"
        " and --engine-kv-tokens N (tokens of its KV cache); its model.yaml has them"
    )
    with pytest.raises(StackError) as refused:
        find_engines(EngineUrls(urls=(url,), kv_tokens=65_536), os.environ)
    assert "add --engine-slots N (requests at once); " in refused.value.message
    (engine,) = find_engines(EngineUrls(urls=(url,), slots=8, kv_tokens=65_536), os.environ)
    capacity = engine.engine.capacity
    assert capacity is not None
    assert (capacity.max_batch_size, capacity.max_blocks, capacity.tokens_per_block) == (8, 2048, 32)


def test_blocks_are_32_tokens_unless_told_otherwise(
    decoupled: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    side = settings_of(decoupled, MODEL)
    told = EngineSettings(max_blocks=4096, max_batch_size=8)
    with closing(EngineClient(side.triton, told, end_id=served_tokenizer.end_id)) as client:
        capacity = client.describe().capacity
    assert (capacity.max_blocks, capacity.tokens_per_block, capacity.max_batch_size) == (4096, 32, 8)


def test_a_minimum_of_tokens_is_refused_by_name(
    decoupled: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    served = served_by(decoupled, served_tokenizer)
    with pytest.raises(EngineError, match="leave min_tokens out"):
        served.ask(served.prompt("Write about mills."), sampling=Sampling(min_tokens=5))


def test_an_answer_that_someone_else_stopped_is_no_complete_one(
    decoupled: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    served = served_by(decoupled, served_tokenizer)
    run = served.ask(served.prompt("Write about ferries endlessly."), max_tokens=50_000, is_endless=True)
    run.first()
    stop_from_outside(decoupled, run.running.lease.lease_id.hex)
    outcome = run.follow()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, RetryableEngineError)
    assert "cancelled" in (outcome.error.said or "")
    assert run.engine_is_done
    run.close()
    eventually(served.is_idle)


def stop_from_outside(engine: RunningEngine, request_id: str) -> None:
    """Stop a request as any client can, and expect the answer that means success."""
    text = grpcclient.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b""], dtype=np.object_))
    stop = grpcclient.InferInput("stop", [1], "BOOL")
    stop.set_data_from_numpy(np.array([True]))
    answers: list[str] = []

    def take(result: object, error: object) -> None:
        answers.append(f"{result} {error}")

    client = grpcclient.InferenceServerClient(f"{LOOPBACK}:{engine.launch.grpc_port}")
    client.start_stream(take)
    client.async_stream_infer(MODEL, [text, stop], request_id=request_id)
    eventually(lambda: answers)
    client.stop_stream()
    client.close()
    assert "Request cancelled by client" in answers[0]


@pytest.mark.parametrize(
    "words",
    [
        "The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)",
        "The prompt length (72417.0) should not exceed max_num_tokens (69632)",
        "`default_max_tokens` (-152) must be greater than 0, `default_max_tokens` (-152) = max_seq_len (8)",
        "Streaming is only supported in decoupled mode.",
    ],
)
def test_what_the_llm_api_refuses_is_not_tried_again(words: str) -> None:
    """In the words of TensorRT-LLM 1.0 to 1.3."""
    assert type(stream_error(f"Error generating request: {words}", has_said=False)) is EngineError
    fault = stream_error("Error generating request: CUDA out of memory", has_said=False)
    assert isinstance(fault, RetryableEngineError)


def test_a_model_that_is_not_decoupled_answers_whole(
    whole: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    served = served_by(whole, served_tokenizer)
    assert not served.model.abilities.is_streaming
    assert not served.model.abilities.takes_stop
    ids = served.prompt("Write about orchards.")
    for limit, reason in ((1000, FinishReason.STOP), (10, FinishReason.LENGTH)):
        run = served.ask(ids, max_tokens=limit)
        assert run.follow() == Finished(reason)
        assert run.engine_is_done
        output = run.answer.output()
        assert output.text == served_tokenizer.decode(served.says(ids)[:limit])
        assert output.num_tokens == min(limit, len(served.says(ids)))
        run.close()


def test_a_stop_string_is_cut_off_a_whole_answer(whole: RunningEngine, served_tokenizer: Tokenizer) -> None:
    served = served_by(whole, served_tokenizer)
    ids = served.prompt("Write about harbours.")
    text = served.text(ids)
    stop = text[len(text) // 2 :][:12]
    run = served.ask(ids, stops=[stop])
    assert run.follow() == Finished(FinishReason.STOP)
    assert run.answer.output().text == text[: text.find(stop)]
    run.close()


def test_a_whole_answer_that_nobody_waits_for_leaves_the_engine(
    whole: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    served = served_by(whole, served_tokenizer)
    run = served.ask(served.prompt("Write about tunnels endlessly."), max_tokens=100_000, is_endless=True)
    eventually(lambda: whole.gauges()["generation_requests"] == 1)
    run.stream.stop()
    assert not run.end().confirmed
    eventually(served.is_idle)  # by itself it would take longer
    run.close()


def test_inspection_says_what_a_quick_start_lacks(
    whole: RunningEngine, decoupled: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    seen = found_by_probe(with_nothing_told(whole), served_tokenizer)
    assert seen["entry point"].detail.startswith("llmapi (llmapi): text in, text out")
    assert seen["live output"].status == "warning"
    assert "decoupled: True" in (seen["live output"].advice or "")
    assert seen["KV cache"].status == "failed"
    assert "LONGBATCH_ENGINE__MAX_BLOCKS" in (seen["KV cache"].advice or "")
    assert seen["batch size"].status == "warning"
    assert seen["metrics"].status == seen["model.yaml"].status == seen["tokenizer"].status == "unknown"
    assert seen["models"].detail.endswith("entry points: tensorrt_llm, llmapi")
    seen = found_by_probe(settings_of(decoupled, MODEL), served_tokenizer)
    assert not [each for each in seen.values() if each.status in {"failed", "warning"}]


def test_inspection_names_a_decoupled_release_whose_answers_come_whole(
    tmp_path: Path, options: EngineOptions, served_tokenizer: Tokenizer
) -> None:
    launch = prepared_launch(tmp_path, options)
    config = tmp_path / "models" / MODEL / "config.pbtxt"
    lines = [line for line in config.read_text().splitlines() if '"lora_id"' not in line]
    config.write_text("\n".join(lines))
    with running_server(launch) as engine:
        engine.wait_ready()
        seen = found_by_probe(settings_of(engine, MODEL), served_tokenizer)
    assert seen["live output"].status == "warning"
    assert "answers come whole all the same" in seen["live output"].detail
    assert "the input lora_id" in (seen["live output"].advice or "")


def test_a_request_may_end_while_it_is_asked_whether_it_is_cancelled(
    tmp_path: Path, options: EngineOptions, served_tokenizer: Tokenizer
) -> None:
    launch = prepared_launch(tmp_path, replace(options, time_scale=2000))
    model = tmp_path / "models" / MODEL / "1" / "model.py"
    assert "_CANCEL_PERIOD = 0.1" in model.read_text()
    model.write_text(model.read_text().replace("_CANCEL_PERIOD = 0.1", "_CANCEL_PERIOD = 0.0001"))
    with running_server(launch) as engine:
        engine.wait_ready()
        served = served_by(engine, served_tokenizer)
        prompt = served.prompt("Write about mills.")
        for _ in range(40):
            runs = [served.ask(prompt, max_tokens=1) for _ in range(4)]
            assert all(isinstance(run.follow(), Finished) for run in runs)
