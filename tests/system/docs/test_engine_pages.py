"""The pages of docs/engines/ lead from a running engine to a first answer with the commands that they show.

llama.cpp is real; the other kinds are stand-ins, see `stand_in_engine`.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.stack.engine_urls import EngineUrls
from cli.stack.errors import StackError
from cli.stack.found_engines import FoundEngine, find_engines
from documented.checks import assert_shown
from documented.shell import commands_of, shell_blocks
from gguf_support import smollm2
from jobs.prompts.gguf_tokenizer import ensure_gguf_tokenizer
from jobs.prompts.tokenizer import Tokenizer
from llama_support import running_llama
from stand_in_engine import Kind, standing_in
from system_support import text_of
from up_support import up

pytestmark = pytest.mark.timeout(300)

LLAMA = ("docs/engines/llama-cpp.md", "First answer")
OLLAMA = ("docs/engines/ollama.md", "Ollama and other OpenAI-compatible servers")
VLLM = ("docs/engines/vllm.md", "vLLM")
SGLANG = ("docs/engines/sglang.md", "SGLang")
TRTLLM = ("docs/engines/tensorrt-llm.md", "trtllm-serve")
OLLAMA_MODEL = "llama3.2:3b"


def start_and_use(place: tuple[str, str]) -> tuple[str, str]:
    """The two blocks of a recipe: what starts engine and stack, and what a second terminal runs."""
    start, use = [each.text for each in shell_blocks() if (each.page, each.section) == place]
    return start, use


def up_options(start: str) -> list[str]:
    """What `longbatch up` gets, without the engine's address."""
    (command,) = [each for each in commands_of(start) if each[:2] == ["longbatch", "up"]]
    at = command.index("--engine-url")
    return command[2:at] + command[at + 2 :]


def urls_of(url: str, options: list[str]) -> EngineUrls:
    """The options of `longbatch up` as it reads them."""
    given = dict(zip(options[::2], options[1::2], strict=True))
    slots, kv_tokens = given.get("--engine-slots"), given.get("--engine-kv-tokens")
    return EngineUrls(
        urls=(url,),
        model=given.get("--engine-model"),
        slots=int(slots) if slots else None,
        kv_tokens=int(kv_tokens) if kv_tokens else None,
        tokenizer=given.get("--engine-tokenizer"),
    )


def found(url: str, options: list[str]) -> FoundEngine:
    (engine,) = find_engines(urls_of(url, options), os.environ)
    return engine


def use_stack(commands: str, *, home: Path) -> str:
    """Run the commands of a second terminal, in a folder with a report; returns what they print."""
    (home / "reports").mkdir()
    (home / "reports" / "a.txt").write_text(text_of(300))
    done = subprocess.run(
        ["bash", "-euc", commands],  # noqa: S607  # whichever a reader has
        cwd=home,
        env={
            **os.environ,
            "XDG_DATA_HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "1000",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert (home / "summaries" / "a.txt.md").read_text()
    return done.stdout


@pytest.fixture
def encode(tmp_path: Path) -> tuple[Path, Callable[[str], list[int]]]:
    """A tokenizer on this machine, and how a server with the same one encodes text."""
    directory = ensure_gguf_tokenizer(smollm2(), tmp_path / "tokenizer")
    tokenizer = Tokenizer.load(str(directory))
    return directory, lambda text: tokenizer.encode_text(text).tolist()


def test_llama_cpp_s_page_leads_to_a_summary(tmp_path: Path) -> None:
    start, use = start_and_use(LLAMA)
    start = start.replace("32768", "4096")  # for a machine that tests
    server = shlex.split(start.splitlines()[0], comments=True)
    slots = int(server[server.index("--parallel") + 1])
    context = int(server[server.index("--ctx-size") + 1])
    with (
        running_llama(tmp_path / "llama", slots=slots, context=context // slots) as llama,
        up(tmp_path, "--engine-url", llama.url, *up_options(start)) as console,
    ):
        assert f"{slots} slots, KV cache {context:,} tokens" in console.read_text()
        printed = use_stack(use, home=tmp_path)
    assert f"✓ capacity: {slots} slots, {context // 32} blocks of 32 tokens" in printed
    assert_shown(LLAMA[0], printed)


def test_ollama_s_page_leads_to_a_summary(tmp_path: Path) -> None:
    start, use = start_and_use(OLLAMA)
    with (
        standing_in("openai", models=(OLLAMA_MODEL, "qwen3:8b")) as server,
        up(tmp_path, "--engine-url", server.url, *up_options(start)) as console,
    ):
        assert f"openai-chat serves {OLLAMA_MODEL}; context 8,192 tokens, 4 slots" in console.read_text()
        printed = use_stack(use, home=tmp_path)
    assert_shown(OLLAMA[0], printed)


@pytest.mark.parametrize("place", [OLLAMA, VLLM, SGLANG, TRTLLM])
def test_every_page_goes_on_with_the_same_commands(place: tuple[str, str]) -> None:
    assert start_and_use(place)[1] == start_and_use(LLAMA)[1]


@pytest.mark.parametrize(
    ("place", "kind"),
    [(VLLM, "vllm"), (SGLANG, "sglang"), (TRTLLM, "trtllm-serve")],
    ids=lambda each: each[1],
)
def test_the_flags_that_a_page_names_are_all_that_its_engine_needs(
    place: tuple[str, str], kind: Kind, encode: tuple[Path, Callable[[str], list[int]]]
) -> None:
    directory, encodes = encode
    options = up_options(start_and_use(place)[0])
    # A reader's machine has the model's files.
    with standing_in(kind, root=str(directory), tokenizes=encodes if kind == "vllm" else None) as server:
        assert found(server.url, options).engine.kind == kind
        if options:
            with pytest.raises(StackError, match=options[0]):
                found(server.url, [])
