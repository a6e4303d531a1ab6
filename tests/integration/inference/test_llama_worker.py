"""Workers over real llama.cpp: a killed one's job goes on with the ids that it saved."""

from collections.abc import Iterator

import pytest

from cli.stack.servers.valkey import EmbeddedValkey
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings, EngineSettings
from llama_support import LlamaServer, running_llama
from worker_suite import *  # noqa: F403  all of its tests
from worker_suite import Fed, settings_of_worker

# tests/contract/test_llama_cpp.py kills the server.
del test_a_job_keeps_its_ids_when_its_engine_is_killed_and_comes_back  # noqa: F821


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    # A second slot: a worker's probe must not take the prompt's out of the cache.
    with running_llama(tmp_path_factory.mktemp("llama"), slots=2) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer(llama: LlamaServer) -> Tokenizer:
    return Tokenizer.load(str(llama.tokenizer))


@pytest.fixture
def fed(database_settings: DatabaseSettings, valkey: EmbeddedValkey, llama: LlamaServer) -> Fed:
    engine = EngineSettings(url=llama.url, time_scale=0.1, max_blocks=128)
    return Fed(
        settings_of_worker(database_settings, valkey.url, engine, tokenizer=str(llama.tokenizer)),
        prompt="Write a long story about a river.",
        long=240,  # some seconds of one thread
        is_idle=llama.is_idle,
    )
