"""The whole stack on llama.cpp: a real model answers a job and summarizes a document."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.local import find_engine
from cli.stack.options import StackOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from gguf_support import smollm2
from jobs.prompts.gguf_tokenizer import ensure_gguf_tokenizer
from jobs.prompts.tokenizer import Tokenizer
from support import eventually
from system_support import Client, running_stack
from worker.engine.probe import inspect as inspect_engine

pytestmark = pytest.mark.timeout(300)

TEXT = "The harbour of Oslo froze in January 1947. Ferries stopped for three weeks."
CONTEXT = 1024


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def stack(home: Path) -> Iterator[Stack]:
    engine = LlamaOptions(gguf=bundled_gguf(), context=CONTEXT, slots=2, threads=1)
    with running_stack(StackOptions(directory=home / "longbatch", engine=engine, api_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as found:
        yield found


def test_a_job_is_answered_by_the_model(client: Client) -> None:
    job = client.submit("Name the capital of France.", max_tokens=12, temperature=0)
    ended = client.finished(job["id"], timeout=120)
    assert ended["state"] == "completed", ended
    assert "Paris" in client.result(job["id"])["output"]
    assert ended["model"] == "SmolLM2-135M-Instruct.Q4_1"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(ensure_gguf_tokenizer(smollm2(), tmp_path_factory.mktemp("smollm2"))))


def said(client: Client, text: str, **fields: object) -> dict[str, Any]:
    """What a job with these fields says."""
    job = client.submit(text, **{"max_tokens": 12, "temperature": 0} | fields)
    ended = client.finished(job["id"], timeout=120)
    assert ended["state"] == "completed", ended
    return client.result(job["id"])


def test_scores_of_tokens_are_biased(client: Client, tokenizer: Tokenizer) -> None:
    paris = {str(token_id): -100 for word in ("Paris", " Paris") for token_id in tokenizer.encode_text(word)}
    assert "Paris" in said(client, "Name the capital of France.")["output"]
    assert "Paris" not in said(client, "Name the capital of France.", logit_bias=paris)["output"]


def test_an_answer_ends_before_a_token_and_not_at_its_own_end(client: Client, tokenizer: Tokenizer) -> None:
    asked = "Name the capital of France."
    [paris] = tokenizer.encode_text(" Paris").tolist()
    cut = said(client, asked, stop_token_ids=[paris])
    assert cut["finish_reason"] == "stop"
    assert said(client, asked)["output"].startswith(cut["output"] + " Paris")
    endless = said(client, "Reply with the one word: yes", max_tokens=60, ignore_eos=True)
    assert (endless["finish_reason"], endless["usage"]["completion_tokens"]) == ("length", 60)


def test_penalties_change_an_answer_that_repeats_itself(client: Client) -> None:
    def variety(**fields: object) -> float:
        asked = "Repeat: la la la la la la"
        words = said(client, asked, max_tokens=48, ignore_eos=True, **fields)["output"].split()
        return len(set(words)) / len(words)

    plain = variety()
    assert variety(frequency_penalty=2, presence_penalty=2) > plain
    assert variety(repetition_penalty=2) > plain


@pytest.mark.parametrize(("name", "value"), [("bad_words", ["x"]), ("min_tokens", 3)])
def test_what_the_engine_does_not_take_is_refused_by_name(client: Client, name: str, value: object) -> None:
    refused = client.http.post("/v1/jobs", json={"input": "x", name: value})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert "logit_bias" in error["message"]


def test_a_document_is_summarized(client: Client) -> None:
    sent = client.http.post(
        "/v1/documents",
        params={"filename": "harbour.txt"},
        content=TEXT.encode(),
        headers={"Content-Type": "text/plain"},
    )
    made = client.http.post("/v1/summaries", json={"documents": [sent.json()["id"]], "length": 16}).json()

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = client.http.get(f"/v1/summaries/{made['data'][0]['id']}").json()
        return found if found["state"] in {"completed", "failed"} else None

    summary = eventually(ended, timeout=120, interval=0.1) or {}
    assert summary["state"] == "completed", summary
    assert summary["summary"].strip()


def test_a_prompt_above_the_models_context_is_refused_with_its_limit(client: Client) -> None:
    job = client.submit(TEXT * 100, max_tokens=12)
    ended = client.finished(job["id"])
    assert ended["state"] == "failed"
    assert ended["error"]["code"] == "context_length_exceeded"
    assert ended["error"]["details"]["limit"] == CONTEXT - 1


def test_commands_find_the_engine_of_the_stack(
    stack: Stack, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = json.loads(stack.ready_file.read_text())
    assert [ready[name] for name in ("triton_grpc", "triton_http", "triton_metrics")] == [None] * 3
    assert ready["pids"]["triton"] is None
    assert all(pid for name, pid in ready["pids"].items() if name != "triton")
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    side = find_engine(None)
    found = {each.name: each for each in inspect_engine(side, Tokenizer.load(side.tokenizer.path))}
    assert {each.status for each in found.values()} == {"ok"}, found
    assert f"{CONTEXT} tokens a job" in found["capacity"].detail


def test_a_killed_engine_comes_back_on_its_port(client: Client, stack: Stack) -> None:
    before = stack.pids["llama_cpp"]
    stack.send("llama_cpp")
    eventually(lambda: stack.pids["llama_cpp"] != before and stack.answers("llama_cpp"))
    job = client.submit("Name the capital of France.", max_tokens=4, temperature=0)
    assert client.finished(job["id"], timeout=120)["state"] == "completed"
