"""What `engine inspect` says of servers that are right, and of one where much is wrong."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cli.stack.servers.engine_options import EngineOptions
from entry_points import settings_of
from jobs.diagnostics import Finding
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSettings, EngineSide
from local_engine import RunningEngine, free_ports, prepared_launch, running_engine, running_server
from support import eventually
from worker.engine import loop
from worker.engine.probe import inspect as inspect_engine
from worker.engine.triton.checks import CHECKS, InspectedServer
from worker.engine.triton.engine import TritonEngine
from worker.engine.triton.keepalive import try_keepalive

# File, what stands there, what is put in its place.
_EDITS = (
    (
        "tensorrt_llm",
        '_chunked_context" value { string_value: "true"',
        '_chunked_context" value { string_value: "0"',
    ),
    ("tensorrt_llm", '"guaranteed_no_evict"', '"max_utilization"'),
    ("tensorrt_llm_bls", "max_batch_size: 4", "max_batch_size: 8"),
    ("tensorrt_llm_bls", "decoupled: true", "decoupled: false"),
    ("postprocessing", "count: 1", "count: 2"),
)


@contextmanager
def running_wrong_engine(directory: Path, options: EngineOptions) -> Iterator[RunningEngine]:
    """A server whose model repository was filled in badly, and which was started without keepalive flags."""
    launch = prepared_launch(directory, options)
    for model, old, new in _EDITS:
        file = directory / "models" / model / "config.pbtxt"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    argv = [flag for flag in launch.argv if "keepalive" not in flag and "http2" not in flag]
    with running_server(replace(launch, argv=argv)) as engine:
        engine.wait_ready()
        yield engine


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Iterator[RunningEngine]:
    options = EngineOptions(mode="synthetic", tokenizer_dir=tokenizer_dir, time_scale=50, text_models=True)
    with running_wrong_engine(tmp_path_factory.mktemp("wrong"), options) as engine:
        yield engine


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """With half the usual pool."""
    options = EngineOptions(mode="synthetic", time_scale=50, kv_cache_tokens=65_536)
    with running_engine(tmp_path_factory.mktemp("right"), options) as engine:
        yield engine


def found(side: EngineSide, tokenizer: Tokenizer) -> dict[str, Finding]:
    findings = list(inspect_engine(side, tokenizer))
    return {each.name: each for each in findings}


def without_overrides(engine: RunningEngine, model_name: str = "tensorrt_llm") -> EngineSide:
    side = settings_of(engine, model_name)
    return side.model_copy(update={"engine": EngineSide().engine})


def test_nothing_fails_on_a_server_that_is_right(right: RunningEngine, served_tokenizer: Tokenizer) -> None:
    seen = found(without_overrides(right), served_tokenizer)
    assert not [each for each in seen.values() if each.status == "failed"]
    assert seen["entry point"].detail.startswith("tensorrt_llm (ids)")
    assert (seen["KV cache"].status, seen["KV cache"].detail) == ("ok", "it holds 65536 tokens")
    assert seen["tokenizer"].status == "unknown"
    assert seen["answer"].status == seen["metrics"].status == "ok"
    assert seen["abilities"].detail.startswith("jobs may have ignore_eos, lora, min_tokens, stop_token_ids, ")
    assert json.loads(json.dumps(asdict(seen["abilities"])))["facts"]["reuses_prefix"] is True
    idle = "0 requests inside, 0 waiting inside, 0 of 1024 blocks used"
    # The probe's own request may still be in the engine's gauges, which follow it within a tenth of a second.
    eventually(lambda: found(without_overrides(right), served_tokenizer)["metrics"].detail == idle)


def test_a_pool_below_the_configured_context_is_a_warning(
    right: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    side = without_overrides(right)
    promised = EngineSettings.model_validate({"max_seq_len": 131_072})
    seen = found(side.model_copy(update={"engine": promised}), served_tokenizer)
    assert seen["KV cache"].status == "warning"
    assert "less than max_seq_len 131072" in seen["KV cache"].detail


def test_each_thing_that_is_wrong_is_named(wrong: RunningEngine, served_tokenizer: Tokenizer) -> None:
    seen = found(without_overrides(wrong), served_tokenizer)
    assert seen["chunked context"].status == "failed"
    assert "8192" in seen["chunked context"].detail
    assert seen["batch size"].status == "warning"
    assert "tensorrt_llm_bls 8" in seen["batch size"].detail
    assert "max_utilization" in seen["scheduler"].detail
    assert "2 instances" in seen["order"].detail
    assert seen["tokenizer"].status == "ok"


def test_a_limit_of_an_iteration_that_the_server_does_not_tell_is_said_to_be_unknown(
    wrong: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    side = without_overrides(wrong)
    engine = TritonEngine(side.triton, side.engine)
    offer, served = loop.run(engine.offer()), loop.run(engine.model())
    assert offer is not None
    del offer.engine.parameters["max_num_tokens"]  # as in TensorRT-LLM's own model
    server = InspectedServer(side, served_tokenizer, engine, offer, served, {}, None)
    (chunking, *_) = [each for check in CHECKS for each in check(server) if each.name == "chunked context"]
    loop.run(engine.close())
    assert chunking.status == "warning"
    assert "max_num_tokens (not told)" in chunking.detail
    assert "8192" not in chunking.detail


def test_a_model_that_cannot_stream_is_no_entry_point(
    wrong: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    seen = found(without_overrides(wrong, "tensorrt_llm_bls"), served_tokenizer)
    assert seen["entry point"].status == "failed"
    assert "not decoupled" in seen["entry point"].detail


def test_a_pool_that_the_load_left_smaller_is_seen(
    wrong: RunningEngine, right: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    side = without_overrides(wrong)
    smaller = {"metrics_url": settings_of(right).triton.metrics_url}
    side = side.model_copy(update={"triton": side.triton.model_copy(update=smaller)})
    seen = list(inspect_engine(side, served_tokenizer))
    assert any("131072 tokens are configured, but the load left 65536" in each.detail for each in seen)


def test_metrics_that_nobody_answers_are_seen(right: RunningEngine, served_tokenizer: Tokenizer) -> None:
    (closed,) = free_ports(1)
    side = without_overrides(right)
    url = {"metrics_url": f"http://127.0.0.1:{closed}/metrics"}
    seen = found(side.model_copy(update={"triton": side.triton.model_copy(update=url)}), served_tokenizer)
    assert seen["metrics"].status == "warning", "jobs run without gauges"


def test_another_model_s_tokenizer_is_seen(wrong: RunningEngine, tokenizer_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tokenizer_dir, other)
    content = json.loads((other / "tokenizer.json").read_bytes())
    content["model"]["merges"] = content["model"]["merges"][:50_000]
    (other / "tokenizer.json").write_text(json.dumps(content))
    seen = found(without_overrides(wrong), Tokenizer.load(str(other)))
    assert seen["tokenizer"].status == "failed"


def test_a_server_that_is_not_there_and_a_model_that_is_not_there(
    right: RunningEngine, served_tokenizer: Tokenizer
) -> None:
    (closed,) = free_ports(1)
    nowhere = EngineSide().triton.model_copy(update={"url": f"127.0.0.1:{closed}"})
    seen = found(EngineSide().model_copy(update={"triton": nowhere}), served_tokenizer)
    assert {each.status for each in seen.values()} == {"failed"}
    seen = found(without_overrides(right, "ensemble"), served_tokenizer)
    assert seen["entry point"].advice == "LONGBATCH_TRITON__MODEL_NAME=tensorrt_llm"


def test_a_server_without_keepalive_flags_is_found_out(wrong: RunningEngine, right: RunningEngine) -> None:
    assert try_keepalive(f"127.0.0.1:{right.launch.grpc_port}", seconds=0.5).status == "ok"
    assert try_keepalive(f"127.0.0.1:{wrong.launch.grpc_port}").status == "failed"
