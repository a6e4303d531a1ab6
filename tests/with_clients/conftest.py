"""The whole stack on real llama.cpp, for clients that nobody here wrote."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.stack.options import StackOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from system_support import running_stack

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
    engine = LlamaOptions(gguf=gguf, context=4096, slots=2, threads=1)
    home = tmp_path_factory.mktemp("home")
    with running_stack(StackOptions(directory=home / "longbatch", engine=engine, api_port=0)) as running:
        yield running
