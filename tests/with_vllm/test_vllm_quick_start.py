"""The quick start's first tab over real vLLM: `up --engine-url`, then a summary by the client and a command.

vLLM chooses its context itself, and its KV cache within 1 GiB. With `-s` this prints the seconds from the
first command to the first answers.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cli.stack.servers.postgres import EmbeddedPostgres
from documented.checks import assert_shown
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory
from scripted_model import POSITIONS, TEXT, ScriptedModel
from support import PATIENCE, eventually
from vllm_server import VllmServer

pytestmark = pytest.mark.timeout(900)

_PAGE: Final = Path("docs/quickstart.md")
_SLOTS: Final = 64
_FIRST_WORDS: Final = frozenset(TEXT.split())


@dataclass(frozen=True)
class QuickStart:
    """A stack that the quick start's command has started.

    Attributes:
        environment: of the terminal next to it.
        console: what the command has printed.
        began_at: monotonic time of the command.
    """

    environment: Mapping[str, str]
    console: str
    began_at: float


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[VllmServer]:
    """A model in a folder with its tokenizer, as the hub has them, and nothing set but the page's slots."""
    folder = ScriptedModel(tokenizer).save(tmp_path_factory.mktemp("model"))
    for file in tokenizer_directory(None).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    server = VllmServer(tmp_path_factory.mktemp("vllm"), folder, is_plain=True, slots=_SLOTS).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def started(vllm: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuickStart]:
    home = tmp_path_factory.mktemp("home")
    environment = {
        **os.environ,
        "XDG_DATA_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = command_of_the_page().replace("http://localhost:8000", vllm.url)
    output, began_at = home / "console", time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command.split(), "--port", "0"], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, output.read_text()
            return (home / "longbatch" / "ready.json").exists()

        eventually(is_ready, timeout=120)
        yield QuickStart(environment, output.read_text(), began_at)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        EmbeddedPostgres(home / "longbatch" / "postgres").remove()


def command_of_the_page() -> str:
    """The line of the first tab that starts Longbatch."""
    tab = _PAGE.read_text().split("## I have an engine")[1].split("\n## ")[0]
    (command,) = re.findall(r"^longbatch up .*$", tab, flags=re.MULTILINE)
    return command


def client_of_the_page() -> str:
    """The program in Python that the page shows."""
    (program,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), flags=re.DOTALL)
    return program


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    for name in ("first", "second"):
        (folder / f"{name}.txt").write_text(f"The {name} report is about rivers and their bridges.\n" * 20)
    return folder


def test_up_finds_what_vllm_serves(started: QuickStart, vllm: VllmServer) -> None:
    assert f"Engine {vllm.url}: vllm serves " in started.console
    assert f"; context {POSITIONS:,} tokens, {_SLOTS} slots, KV cache " in started.console
    assert "(the same tokens as the engine's)" in started.console


def test_inspect_prints_what_the_page_of_vllm_shows(started: QuickStart) -> None:
    done = subprocess.run(
        ["longbatch", "engine", "inspect"],  # noqa: S607  # of this environment
        env={**started.environment, "COLUMNS": "1000"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert_shown("docs/engines/vllm.md", done.stdout)


def test_the_pages_program_prints_a_summary_of_each_document(started: QuickStart, reports: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", client_of_the_page()],
        cwd=reports.parent,
        env=started.environment,
        check=True,
        capture_output=True,
        text=True,
    )
    sys.stdout.write(f"{time.monotonic() - started.began_at:.1f} s from the first command to its answers\n")
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == {"reports/first.txt", "reports/second.txt"}
    assert all(line.split()[1] in _FIRST_WORDS for line in lines)


def test_the_pages_command_writes_a_summary_of_each_document(started: QuickStart, reports: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "longbatch.cli",
            "summarize",
            "reports/",
            "--output",
            "summaries/",
            "--length",
            "64",
        ],
        cwd=reports.parent,
        env=started.environment,
        check=True,
        capture_output=True,
    )
    written = {each.name: each.read_text() for each in (reports.parent / "summaries").rglob("*.md")}
    assert len(written) == 2
    assert all(_FIRST_WORDS & set(text.split()) for text in written.values())
