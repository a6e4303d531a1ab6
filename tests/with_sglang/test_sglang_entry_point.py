"""The suites of entry points and of workers over SGLang's own HTTP server."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cli.stack.servers.valkey import EmbeddedValkey
from entry_point_suite import *  # noqa: F403  all of its tests
from entry_points import Mortal, Served
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings
from scripted_model import ENDLESS
from sglang_server import SglangServer
from support import eventually
from worker_suite import *  # noqa: F403  all of its tests
from worker_suite import Fed, settings_of_worker

pytestmark = pytest.mark.timeout(900)  # SGLang starts in half a minute

# The first is of Triton alone; an engine process that dies takes the server with it, as tests below show.
del test_triton_s_generate_endpoint_answers, test_an_error_mid_stream_is_worth_another_try  # noqa: F821


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[SglangServer]:
    """One that tests kill and start again."""
    made = SglangServer(tmp_path_factory.mktemp("sglang"), tokenizer).start()
    yield made
    made.kill()


@pytest.fixture
def served(server: SglangServer, tokenizer: Tokenizer) -> Served:
    found = _served(server, tokenizer)
    eventually(found.is_idle)
    return found


@pytest.fixture
def mortal(server: SglangServer, tokenizer: Tokenizer) -> Mortal:
    server.kill()
    return Mortal(server, lambda: [_served(server, tokenizer) for _ in range(2)])


@pytest.fixture
def fed(database_settings: DatabaseSettings, valkey: EmbeddedValkey, served: Served) -> Fed:
    assert isinstance(served.engine, SglangServer)
    settings = settings_of_worker(database_settings, valkey.url, served.engine.settings)
    prompt = f"Write about rivers{ENDLESS}."
    known = served.endless_ids(served.prompt(prompt), 600)
    return Fed(settings, prompt, len(known), served.is_idle, served.engine, known)


def _served(server: SglangServer, tokenizer: Tokenizer) -> Served:
    return replace(Served(server, server.model(), tokenizer, server.says), long_answer=2000)
