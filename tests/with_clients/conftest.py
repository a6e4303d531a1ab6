"""The whole stack on real llama.cpp, for clients that nobody here wrote."""

from collections.abc import Iterator

import pytest

from cli.stack.options import StackOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from system_support import running_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    engine = LlamaOptions(gguf=bundled_gguf(), context=4096, slots=2, threads=1)
    home = tmp_path_factory.mktemp("home")
    with running_stack(StackOptions(directory=home / "longbatch", engine=engine, api_port=0)) as running:
        yield running
