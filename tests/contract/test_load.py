"""`longbatch bench engine`: its figures follow the field's definitions, and it ends."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.load.figures import Percentiles, Timing
from cli.stack.servers.engine_options import EngineOptions
from local_engine import RunningEngine, free_ports, running_engine
from longbatch.cli.main import application

ENTRIES = ("tensorrt_llm", "llmapi", "ensemble", "tensorrt_llm_bls", "vllm_model")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Iterator[RunningEngine]:
    options = EngineOptions(
        mode="synthetic",
        tokenizer_dir=tokenizer_dir,
        time_scale=20,
        tokens_per_response=1,
        text_models=True,
        vllm_model=True,
        llmapi=True,
    )
    with running_engine(tmp_path_factory.mktemp("load"), options) as running:
        yield running


def report(engine: RunningEngine, *options: str) -> dict[str, object]:
    url = f"127.0.0.1:{engine.launch.grpc_port}"
    result = CliRunner().invoke(application(), ["bench", "engine", "--url", url, *options, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_time_per_output_token_leaves_the_first_one_out() -> None:
    timing = Timing(ttft=1.0, latency=3.0, output_tokens=11, is_counted=True)
    assert timing.tpot == pytest.approx(0.2)
    assert Timing(ttft=1.0, latency=1.0, output_tokens=1, is_counted=True).tpot is None


def test_percentiles_are_values_that_were_observed() -> None:
    values = Percentiles.of([float(each) for each in range(1, 201)])
    assert values == Percentiles(mean=100.5, p50=100, p90=180, p99=198, max=200)
    assert Percentiles.of([]) is None


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_point_is_measured_while_it_streams(engine: RunningEngine, name: str) -> None:
    found = report(engine, "--model", name, "--requests", "6", "--max-tokens", "30", "--prompt-tokens", "100")
    assert (found["num_requests"], found["num_failed"], found["output_tokens"]) == (6, 0, 180)
    assert found["tokens_are_counted"]
    ttft, tpot, latency = found["ttft"], found["tpot"], found["latency"]
    assert isinstance(ttft, dict)
    assert isinstance(tpot, dict)
    assert isinstance(latency, dict)
    assert 0 < ttft["p50"] < latency["p50"]
    assert latency["mean"] == pytest.approx(ttft["mean"] + 29 * tpot["mean"], rel=0.05)


def test_arrivals_at_a_rate_do_not_wait_for_answers(engine: RunningEngine) -> None:
    # Each takes longer than the mean gap, so with callers that wait it would take three times as long.
    found = report(engine, "--requests", "30", "--rate", "30", "--max-tokens", "100", "--prompt-tokens", "50")
    assert (found["num_requests"], found["num_failed"]) == (30, 0)
    assert isinstance(found["seconds"], float)
    latency = found["latency"]
    assert isinstance(latency, dict)
    assert found["seconds"] < 30 * latency["mean"]


def test_failures_are_counted_and_reported(engine: RunningEngine) -> None:
    url = f"127.0.0.1:{engine.launch.grpc_port}"
    too_long = ["--prompt-tokens", "140000", "--requests", "2", "--concurrency", "1"]
    result = CliRunner().invoke(application(), ["bench", "engine", "--url", url, *too_long])
    assert result.exit_code == 1
    assert "exceeds maximum input length" in result.output


def test_a_server_that_is_not_there_is_one_line() -> None:
    (closed,) = free_ports(1)
    result = CliRunner().invoke(application(), ["bench", "engine", "--url", f"127.0.0.1:{closed}"])
    assert result.exit_code != 0
