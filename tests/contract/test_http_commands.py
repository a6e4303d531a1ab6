"""The commands that ask an engine, over an HTTP one; the engine is a stand-in, see `stand_in_engine`."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.commands.inspect import of_unnamed
from cli.local import names_engine
from jobs.diagnostics import Finding
from longbatch.cli.main import application
from stand_in_engine import StandIn, standing_in

CAPACITY = {"MAX_BATCH_SIZE": "4", "MAX_BLOCKS": "64", "TOKENS_PER_BLOCK": "32"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with standing_in("vllm") as found:
        for name, value in CAPACITY.items():
            monkeypatch.setenv(f"LONGBATCH_ENGINE__{name}", value)
        yield found


def test_an_inspection_by_url_says_what_the_server_is(server: StandIn) -> None:
    answer = CliRunner().invoke(
        application(), ["engine", "inspect", "--url", server.url, "--keepalive", "--json"]
    )
    assert answer.exit_code == 0, answer.output
    found = {each["name"]: each for each in json.loads(answer.stdout)}
    assert found["server"]["detail"].endswith("runs vllm")
    assert found["answer"]["status"] == "ok"
    assert "keepalive" not in found  # its flags are Triton's


def test_an_inspection_of_no_named_engine_advises_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # without a running stack
    failed = Finding("server", "failed", "127.0.0.1:8001: connection refused", "LONGBATCH_TRITON__URL")
    assert not names_engine(None)
    assert "start `longbatch up`, or add --url" in (of_unnamed(failed).advice or "")
    other = replace(failed, status="ok")
    assert of_unnamed(other) == other
    assert names_engine("http://localhost:8000")
    monkeypatch.setenv("LONGBATCH_TRITON__URL", "localhost:8001")
    assert names_engine(None)


@pytest.mark.parametrize("promised", [None, "131072", "4096"])
def test_an_inspection_compares_the_context_only_with_a_configured_one(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, promised: str | None
) -> None:
    if promised is not None:
        monkeypatch.setenv("LONGBATCH_ENGINE__MAX_SEQ_LEN", promised)
        monkeypatch.setenv("LONGBATCH_ENGINE__MAX_INPUT_LEN", "4000")
    answer = CliRunner().invoke(application(), ["engine", "inspect", "--url", server.url, "--json"])
    contexts = [each["detail"] for each in json.loads(answer.stdout) if each["name"] == "context"]
    warned = ["its context is 4096 tokens, less than the 131072 promised"]
    assert contexts == (warned if promised == "131072" else [])


def test_the_doctor_asks_the_http_engine_and_no_triton(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGBATCH_ENGINE__URL", server.url)
    answer = CliRunner().invoke(application(), ["doctor", "--api-url", "http://127.0.0.1:1", "--json"])
    found = {each["name"]: each for each in json.loads(answer.stdout)}
    assert found["engine: server"]["detail"] == f"{server.url} runs vllm"
    assert found["engine: answer"]["status"] == "ok"
    assert found["engine: entry point"]["detail"].startswith("served: token ids in and out")
    assert not [name for name in found if "triton" in name]


def test_an_inspection_says_that_the_key_is_wrong_where_only_answers_need_one(server: StandIn) -> None:
    server.api_key, server.is_open = "right", True
    answer = CliRunner().invoke(application(), ["engine", "inspect", "--url", server.url, "--json"])
    found = {each["name"]: each for each in json.loads(answer.stdout)}
    assert found["answer"]["status"] == "failed"
    assert "LONGBATCH_ENGINE__API_KEY" in found["answer"]["detail"]


def test_a_load_test_goes_straight_to_the_http_engine(server: StandIn) -> None:
    size = ["--requests", "3", "--concurrency", "1", "--prompt-tokens", "50", "--max-tokens", "7"]
    answer = CliRunner().invoke(application(), ["bench", "engine", "--url", server.url, *size, "--json"])
    assert answer.exit_code == 0, answer.output
    assert len(server.bodies) == 3
    assert server.asked()["max_tokens"] == 7
    assert server.url in answer.output
