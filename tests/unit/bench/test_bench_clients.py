"""`make bench-clients` reads what the load generators write, in one unit; the samples are of real runs."""

import json
from pathlib import Path

import pytest

from bench.clients.tools import (
    ALL_TOOLS,
    Figures,
    LoadSize,
    Target,
    read_aiperf,
    read_genai_bench,
    read_longbatch,
)

SIZE = LoadSize(requests=6, concurrency=2, prompt_tokens=200, max_tokens=16)


def target(key: str | None) -> Target:
    return Target(
        name="server", url="http://localhost:1", api_key=key, model="m", tokenizer=Path("/tokenizer"), seed=7
    )


def test_aiperf_s_milliseconds_become_seconds(tmp_path: Path) -> None:
    export = {
        "time_to_first_token": {"unit": "ms", "avg": 3025.4, "p50": 3027.2},
        "inter_token_latency": {"unit": "ms", "avg": 159.8, "p50": 159.7},
        "request_latency": {"unit": "ms", "avg": 5413.2, "p50": 5560.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 5.8},
        "input_sequence_length": {"unit": "tokens", "avg": 200.0},
        "output_sequence_length": {"unit": "tokens", "avg": 15.8},
        "request_count": {"unit": "requests", "avg": 6.0},
    }
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(export))
    found = read_aiperf(tmp_path, "")
    assert [found.ttft, found.tpot, found.latency] == pytest.approx([3.0272, 0.1597, 5.56])
    assert (found.prompt_tokens, found.output_tokens, found.answered) == (200, 15.8, 6)


def test_genai_bench_s_run_is_read(tmp_path: Path) -> None:
    run = {
        "aggregated_metrics": {
            "mean_output_throughput_tokens_per_s": 5.2,
            "num_completed_requests": 6,
            "stats": {
                "ttft": {"p50": 3.9},
                "tpot": {"p50": 0.12},
                "e2e_latency": {"p50": 5.7},
                "num_input_tokens": {"mean": 230.0},
                "num_output_tokens": {"mean": 16.0},
            },
        },
        "_time_unit": "s",
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "D200_16_text-to-text_num_concurrency_2_time_18s.json").write_text(json.dumps(run))
    (tmp_path / "run" / "experiment_metadata.json").write_text("{}")
    assert read_genai_bench(tmp_path, "") == Figures(
        ttft=3.9,
        tpot=0.12,
        latency=5.7,
        tokens_per_second=5.2,
        prompt_tokens=230,
        output_tokens=16,
        answered=6,
    )


def test_our_own_report_is_read() -> None:
    report = {
        "num_requests": 6,
        "num_failed": 2,
        "output_tokens": 64,
        "output_tokens_per_second": 5.0,
        **{name: {"p50": value} for name, value in (("ttft", 1.0), ("tpot", 0.1), ("latency", 2.5))},
    }
    figures = read_longbatch(Path(), json.dumps(report))
    assert (figures.answered, figures.output_tokens, figures.ttft) == (4, 16, 1.0)


@pytest.mark.parametrize("key", [None, "lb_key"])
def test_no_tool_asks_a_model_hub(key: str | None, tmp_path: Path) -> None:
    for tool in ALL_TOOLS:
        command = tool.command(target(key), SIZE, tmp_path)
        environment = tool.environment(target(key))
        assert "/tokenizer" in [*command, *environment.values()]
        assert "http://localhost:1" in command
        assert ("lb_key" in [*command, *environment.values()]) == (key is not None)
    ours, aiperf, genai = (tool.environment(target(key)) for tool in ALL_TOOLS)
    assert "127.0.0.1" in aiperf["HF_ENDPOINT"]
    assert genai["HF_HUB_OFFLINE"] == "1"
    assert "LONGBATCH_API_KEY" in ours
