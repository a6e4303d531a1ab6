"""`longbatch up --engine-url`: a stack on engines that run already, and one line for what is none."""

import functools
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cli.stack.ports import LOOPBACK, free_port
from llama_support import LlamaServer, running_llama
from support import eventually
from up_support import longbatch, up

pytestmark = pytest.mark.timeout(300)

_CONTEXT = 1024


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LlamaServer]]:
    """Two engines of one slot each."""
    with (
        running_llama(tmp_path_factory.mktemp("first"), context=_CONTEXT) as first,
        running_llama(tmp_path_factory.mktemp("second"), context=_CONTEXT) as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def console(home: Path, engines: list[LlamaServer]) -> Iterator[str]:
    """What a running stack on both engines has printed."""
    urls = [word for each in engines for word in ("--engine-url", each.url)]
    with up(home, *urls) as output:
        yield output.read_text()


def ready(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "longbatch" / "ready.json").read_text())
    return found


@pytest.mark.usefixtures("console")
def test_a_job_is_answered_through_the_command_line(home: Path) -> None:
    document = home / "question.txt"
    document.write_text("Name the capital of France.")
    done = longbatch("submit", str(document), "--max-tokens", "12", "--temperature", "0", "--wait", home=home)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_each_step_is_a_line_where_the_output_is_no_terminal(
    console: str, home: Path, engines: list[LlamaServer]
) -> None:
    lines = console.splitlines()
    steps = [
        f"Engine {engines[0].url}",
        "Started the database (Postgres).",
        "Started the broker (Valkey).",
        "The database has the newest schema.",
        "Started the API.",
        "Started inference worker.",
        "Started service worker.",
        "Started inference worker 2.",
        "Waiting until the engine gets jobs…",
        "Longbatch is ready.",
    ]
    places = [next(n for n, line in enumerate(lines) if line.startswith(step)) for step in steps]
    assert places == sorted(places)
    logs = [file.read_text() for file in (home / "longbatch" / "logs").iterdir()]
    assert len(logs) >= 6
    assert not [text for text in (console, *logs) if "PyTorch" in text]


def test_what_was_found_is_printed(console: str, engines: list[LlamaServer]) -> None:
    for each in engines:
        assert f"Engine {each.url}: llama.cpp serves {each.model.gguf.path.name}; " in console
    assert "; context 1,024 tokens, 1 slot, KV cache 1,024 tokens; tokenizer " in console
    assert "(the same tokens as the engine's)" in console
    assert "stand-in" not in console


@pytest.mark.usefixtures("console")
def test_each_engine_has_a_worker_of_its_own(home: Path, engines: list[LlamaServer]) -> None:
    found = ready(home)
    pids = [found["pids"][name] for name in ("inference_worker", "inference_worker_2")]
    assert len(set(pids)) == 2
    assert found["pids"]["triton"] is None

    def registered() -> set[str]:
        key = {"Authorization": f"Bearer {found['api_key']}"}
        listed = httpx2.get(f"{found['api_url']}/v1/engines", headers=key, trust_env=False).json()
        return {each["id"] for each in listed["data"]}

    assert eventually(lambda: registered() == {each.url.removeprefix("http://") for each in engines})


@pytest.mark.usefixtures("console")
def test_the_doctor_names_the_engine_and_what_it_serves(home: Path, engines: list[LlamaServer]) -> None:
    done = longbatch("doctor", home=home)
    assert done.returncode == 0, done.stdout
    assert f"serves {engines[0].model.gguf.path.name}, version" in done.stdout
    assert "✓ engine: jobs start on" in done.stdout
    assert f"✓ engine: server: {engines[0].url} runs llama.cpp" in done.stdout
    assert "triton" not in done.stdout.lower()


def test_nothing_starts_without_an_engine(tmp_path: Path) -> None:
    url = f"http://{LOOPBACK}:{free_port()}"
    refused = longbatch("up", "--port", "0", "--engine-url", url, home=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr == f"error: nothing answers at {url} (connection refused): is the engine running?\n"
    assert [*tmp_path.iterdir()] == []


def test_an_engine_of_the_environment_is_looked_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "site"
    directory.mkdir()
    server = ThreadingHTTPServer(
        (LOOPBACK, 0), functools.partial(SimpleHTTPRequestHandler, directory=directory)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://{LOOPBACK}:{server.server_port}"
    monkeypatch.setenv("LONGBATCH_ENGINE__URL", url)
    refused = longbatch("up", "--port", "0", home=tmp_path)
    server.shutdown()
    server.server_close()
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"error: {url} answers, but is no engine (GET /v1/models: 404)")
    assert not (tmp_path / "longbatch").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine-slots", "4"], "it needs --engine-url."),
        (["--engine-url", "http://localhost:1", "--engine", "llama"], "give one of them."),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: list[str], said: str) -> None:
    refused = longbatch("up", *options, home=tmp_path)
    assert refused.returncode == 2
    assert said in refused.stderr
