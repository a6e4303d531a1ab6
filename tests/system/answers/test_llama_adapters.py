"""Adapters over real llama.cpp, which was started with one: by name on every route, apart from the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner, Result

from cli.stack.options import StackOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from longbatch.cli.main import application
from openai_support import ended, jsonl, results
from openai_support import run as run_batch
from system_support import Client, running_stack
from weights.adapters import write_gguf_adapter

pytestmark = pytest.mark.timeout(400)

MODEL = "SmolLM2-135M-Instruct.Q4_1"
LEGAL = f"{MODEL}:legal"
ASKED: list[Any] = [{"role": "user", "content": "Name three fruits."}]
CHAT: dict[str, Any] = {"messages": ASKED, "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two adapters, of which the server gets the first."""
    home = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("legal", "medical")):
        write_gguf_adapter(home / f"{name}.gguf", seed=seed)
    return home


@pytest.fixture(scope="module")
def stack(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    adapters = (files / "legal.gguf",)
    engine = LlamaOptions(gguf=bundled_gguf(), context=2048, slots=2, threads=1, adapters=adapters)
    home = tmp_path_factory.mktemp("home")
    with running_stack(StackOptions(directory=home / "longbatch", engine=engine, api_port=0)) as running:
        for name in ("legal", "medical"):
            file = str(files / f"{name}.gguf")
            made = invoke(running, "add", f"{MODEL}:{name}", file, "--base", str(bundled_gguf()))
            assert made.exit_code == 0, made.output
        yield running


def invoke(stack: Stack, *arguments: str) -> Result:
    environment = {"LONGBATCH_DATABASE__URL": stack.urls.database_url or ""}
    return CliRunner().invoke(application(), ["adapters", *arguments], env=environment)


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as found:
        yield found


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=120) as found:
        yield found


@pytest.fixture(scope="module")
def said(sdk: openai.OpenAI) -> dict[str, str | None]:
    """What the model says with the adapter and without."""
    return {
        model: sdk.chat.completions.create(model=model, **CHAT).choices[0].message.content
        for model in (MODEL, LEGAL)
    }


def test_an_adapter_answers_otherwise_than_the_model_on_every_route(
    sdk: openai.OpenAI, client: Client, said: dict[str, str | None]
) -> None:
    assert said[MODEL] != said[LEGAL]
    with sdk.chat.completions.create(model=LEGAL, stream=True, **CHAT) as chunks:
        found = list(chunks)
    assert {each.model for each in found} == {LEGAL}
    assert "".join(each.choices[0].delta.content or "" for each in found) == said[LEGAL]
    asked: Any = {"input": "Name three fruits.", "temperature": 0, "max_output_tokens": 16}
    response = sdk.responses.create(model=LEGAL, **asked)
    assert (response.model, response.output_text[:8]) == (LEGAL, (said[LEGAL] or "")[:8])
    for share in (True, False):
        job = client.submit("Name three fruits.", model=LEGAL, max_tokens=12, share_equal=share)
        assert client.finished(job["id"], timeout=120)["model"] == LEGAL
        assert client.result(job["id"])["output"] == said[LEGAL]


def test_the_model_s_answer_has_nothing_of_an_adapter_that_read_the_same_prompt(
    sdk: openai.OpenAI, said: dict[str, str | None]
) -> None:
    for model in (MODEL, LEGAL, MODEL, LEGAL):
        answer = sdk.chat.completions.create(model=model, **CHAT).choices[0].message.content
        assert answer == said[model]


def test_lines_of_a_batch_are_answered_by_what_they_name(
    sdk: openai.OpenAI, said: dict[str, str | None]
) -> None:
    asked = {"adapter": LEGAL, "model": MODEL, "absent": f"{MODEL}:medical", "unknown": f"{MODEL}:none"}
    content = jsonl(
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": CHAT | {"model": model}}
        for name, model in asked.items()
    )
    batch = ended(sdk, run_batch(sdk, content).id)
    bodies = {name: line["response"]["body"] for name, line in results(sdk, batch.output_file_id).items()}
    told = {name: (body["model"], body["choices"][0]["message"]["content"]) for name, body in bodies.items()}
    assert told == {"adapter": (LEGAL, said[LEGAL]), "model": (MODEL, said[MODEL])}
    errors = results(sdk, batch.error_file_id)
    assert {name: line["response"]["status_code"] for name, line in errors.items()} == {
        "absent": 400,
        "unknown": 404,
    }


def test_the_model_that_the_server_was_not_started_with_an_adapter_for_says_so(
    sdk: openai.OpenAI, stack: Stack
) -> None:
    assert [each.id for each in sdk.models.list().data] == [MODEL, LEGAL]
    with pytest.raises(openai.BadRequestError, match="was started with the adapter 'medical'"):
        sdk.chat.completions.create(model=f"{MODEL}:medical", **CHAT)
    listed = json.loads(invoke(stack, "list", "--json").stdout)
    assert {each["id"]: each["state"] for each in listed} == {LEGAL: "ready", f"{MODEL}:medical": "refused"}


def test_a_job_whose_adapter_is_removed_while_it_waits_fails_alone(
    client: Client, stack: Stack, files: Path
) -> None:
    long = [client.submit("Count to a thousand.", max_tokens=300, ignore_eos=True) for _ in range(2)]
    for each in long:
        client.streaming(each["id"])
    waiting = client.submit("Name three fruits.", model=LEGAL, max_tokens=4)
    other = client.submit("Name three fruits.", max_tokens=4)
    assert invoke(stack, "remove", LEGAL).exit_code == 0
    try:
        for each in long:
            client.cancel(each["id"])
        failed = client.finished(waiting["id"], timeout=120)
        assert (failed["state"], failed["error"]["code"]) == ("failed", "adapter_removed")
        assert LEGAL in failed["error"]["message"]
        assert failed["attempt"] == 0
        assert client.finished(other["id"], timeout=120)["state"] == "completed"
    finally:
        assert invoke(stack, "add", LEGAL, str(files / "legal.gguf")).exit_code == 0
