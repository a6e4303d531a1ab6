"""The suites of entry points and of workers over real vLLM, by token ids over HTTP."""

from collections.abc import Iterator
from typing import Final

import pytest

from cli.stack.servers.valkey import EmbeddedValkey
from entry_point_suite import *  # noqa: F403  all of its tests
from entry_points import REFERENCE, Mortal, Served
from jobs import lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings
from scripted_model import ENDLESS, ScriptedModel
from support import eventually
from vllm_server import VllmServer
from worker_suite import *  # noqa: F403  all of its tests
from worker_suite import Fed, settings_of_worker
from worker_support import Queue, running_worker

_PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
pytestmark = pytest.mark.timeout(900)  # vLLM starts in a minute, and reads long prompts without a GPU

# The first is of Triton alone; an engine process that dies takes the server with it, as tests below show.
del test_triton_s_generate_endpoint_answers, test_an_error_mid_stream_is_worth_another_try  # noqa: F821


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


@pytest.fixture
def fed(database_settings: DatabaseSettings, valkey: EmbeddedValkey, served: Served) -> Fed:
    assert isinstance(served.engine, VllmServer)
    settings = settings_of_worker(database_settings, valkey.url, served.engine.settings)
    prompt = f"Write about rivers{ENDLESS}."
    known = served.endless_ids(served.prompt(prompt), 600)
    return Fed(settings, prompt, len(known), served.is_idle, served.engine, known)


def test_a_job_cancelled_in_its_prefill_keeps_its_blocks_until_the_engine_holds_none(
    queue: Queue, fed: Fed, served: Served, server: VllmServer
) -> None:
    with running_worker(fed.settings, queue.tokenizer):
        num_read = server.total(_PROMPT_TOKENS)
        job_id = queue.submit(f"{REFERENCE[:400_000]}{ENDLESS}", max_tokens=1000)
        eventually(lambda: server.gauges()["used"] > 0)  # from its first chunk's end
        with transaction(queue.sessions) as session:
            lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)

        def is_free() -> bool:
            is_reserved = bool(queue.reservations())
            # Looked at afterwards: from the cancel on, the engine only gets idler.
            assert is_reserved or served.is_idle()
            return not is_reserved

        assert not is_free()
        eventually(is_free)
        assert queue.ended(job_id).state == "cancelled"
    assert server.total(_PROMPT_TOKENS) == num_read, "vLLM counts a prompt that it has read to its end"
