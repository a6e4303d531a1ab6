"""The suite of entry points over real vLLM, by token ids over HTTP."""

from collections.abc import Iterator

import pytest

from entry_point_suite import *  # noqa: F403  all of its tests
from entry_points import Mortal, Served
from jobs.prompts.tokenizer import Tokenizer
from scripted_model import ScriptedModel
from support import eventually
from vllm_server import VllmServer

pytestmark = pytest.mark.timeout(900)  # vLLM starts in a minute, and reads long prompts without a GPU

# The first is of Triton alone; an engine process that dies takes the server with it, as the last test shows.
del test_triton_s_generate_endpoint_answers, test_an_error_mid_stream_is_worth_another_try  # noqa: F821


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


@pytest.fixture(scope="module")
def script(tokenizer: Tokenizer) -> ScriptedModel:
    return ScriptedModel(tokenizer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, script: ScriptedModel) -> Iterator[VllmServer]:
    made = VllmServer(
        tmp_path_factory.mktemp("vllm"), script.save(tmp_path_factory.mktemp("scripted"))
    ).start()
    yield made
    made.kill()


@pytest.fixture
def served(server: VllmServer, tokenizer: Tokenizer, script: ScriptedModel) -> Served:
    found = Served(server, server.model(), tokenizer, script.says)
    eventually(found.is_idle)
    return found


@pytest.fixture
def mortal(server: VllmServer, tokenizer: Tokenizer, script: ScriptedModel) -> Mortal:
    """The same server, which the test starts again."""
    server.kill()
    return Mortal(server, lambda: [Served(server, server.model(), tokenizer, script.says) for _ in range(2)])
