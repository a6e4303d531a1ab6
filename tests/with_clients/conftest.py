"""The whole stack on real llama.cpp, or on real vLLM, for clients that nobody here wrote."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.stack.options import StackOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from system_support import running_stack
from vllm_server import VllmServer
from weights.unpacked import unpack

ENGINE = os.environ.get("CLIENTS_ENGINE", "llama")
CONTEXT = 4096
SLOTS = 2
TEMPLATE = Path(__file__).with_name("chatml_with_tools.jinja")


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with a chat template that takes tools, in the form of Hermes: its own takes none."""
    file = tmp_path_factory.mktemp("model") / bundled_gguf().name
    options = ["--chat-template-file", str(TEMPLATE), str(bundled_gguf()), str(file)]
    command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", *options]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return file


@pytest.fixture(scope="session")
def stack(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("home") / "longbatch"
    if ENGINE == "llama":
        engine = LlamaOptions(gguf=gguf, context=CONTEXT, slots=SLOTS, threads=1)
        with running_stack(StackOptions(directory=directory, engine=engine, api_port=0)) as running:
            yield running
        return
    assert ENGINE == "vllm", f"CLIENTS_ENGINE={ENGINE} is unknown: llama or vllm"
    with _running_vllm(gguf, tmp_path_factory.mktemp("vllm")) as settings:
        options = StackOptions(directory=directory, api_port=0, environment={**os.environ, **settings})
        with running_stack(options) as running:
            yield running


@contextmanager
def _running_vllm(gguf: Path, directory: Path) -> Iterator[Mapping[str, str]]:
    """Serve the same model by vLLM, and yield our settings for it."""
    model = unpack(gguf, directory / "model")
    server = VllmServer(
        directory, model, slots=SLOTS, context=CONTEXT, pool_tokens=SLOTS * CONTEXT, tokenizer=model
    )
    server.start()
    try:
        yield {
            "LONGBATCH_ENGINE__URL": server.url,
            "LONGBATCH_ENGINE__KIND": "vllm",
            "LONGBATCH_ENGINE__MODEL": gguf.stem,
            "LONGBATCH_ENGINE__MAX_BATCH_SIZE": str(SLOTS),
            "LONGBATCH_ENGINE__MAX_SEQ_LEN": str(CONTEXT),
            "LONGBATCH_ENGINE__MAX_INPUT_LEN": str(CONTEXT - 1),
            "LONGBATCH_ENGINE__TIME_SCALE": "0.05",
            "LONGBATCH_TOKENIZER__PATH": str(model),
        }
    finally:
        server.kill()
