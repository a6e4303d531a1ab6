"""Adapters over real vLLM on the CPU, which was started with one: by name, through a worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cli.stack.servers.valkey import EmbeddedValkey
from jobs.adapters import registry
from jobs.adapters.files import check, check_base
from jobs.database import transaction
from jobs.models import Address, Engine
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings
from scripted_model import ScriptedModel
from vllm_server import VllmServer
from weights.adapters import write_peft_adapter
from worker_suite import settings_of_worker
from worker_support import ENGINE, MODEL, Queue, running_worker

pytestmark = pytest.mark.timeout(900)  # vLLM starts in a minute

_TEXT: Final = "Write about harbours."
_MAX_TOKENS: Final = 12


@pytest.fixture(scope="module")
def script(tokenizer: Tokenizer) -> ScriptedModel:
    return ScriptedModel(tokenizer)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, script: ScriptedModel) -> Path:
    return script.save(tmp_path_factory.mktemp("scripted"))


@pytest.fixture(scope="module")
def legal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that turns what attention has counted into something else."""
    path = tmp_path_factory.mktemp("adapters") / "legal"
    return write_peft_adapter(path, layers=1, strength=4.0, modules={"o_proj": (32, 96)})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, base: Path, legal: Path) -> Iterator[VllmServer]:
    made = VllmServer(tmp_path_factory.mktemp("vllm"), base, context=4096, adapters={"legal": legal})
    yield made.start()
    made.kill()


def test_a_job_is_answered_by_what_it_names(
    queue: Queue,
    server: VllmServer,
    script: ScriptedModel,
    base: Path,
    legal: Path,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    tmp_path: Path,
) -> None:
    other = write_peft_adapter(tmp_path / "other", layers=1, seed=2, modules={"o_proj": (32, 96)})
    with transaction(queue.sessions) as session:
        for name, path in (("legal", legal), ("other", other)):
            checked = check(path)
            check_base(checked, base)
            registry.add(session, Address(MODEL, name), checked, source=str(path))
    assert server.model().abilities.adapters == ("legal",)
    settings = settings_of_worker(database_settings, valkey.url, server.settings)
    with running_worker(settings, queue.tokenizer):
        ended = {
            name: queue.ended(queue.submit(_TEXT, max_tokens=_MAX_TOKENS, adapter=name), timeout=300)
            for name in (None, "legal", "other")
        }
        again = queue.ended(queue.submit(_TEXT, max_tokens=_MAX_TOKENS, adapter="legal"), timeout=300)
    prompt = queue.tokenizer.encode_messages([Message("user", _TEXT)])
    assert queue.result_ids(ended[None].id) == script.says(prompt)[:_MAX_TOKENS]
    assert queue.result_ids(ended["legal"].id) != queue.result_ids(ended[None].id)
    assert queue.result_ids(again.id) == queue.result_ids(ended["legal"].id)
    error = ended["other"].error
    assert error is not None
    assert "was not started with the adapter 'other'; it has legal" in str(error["message"])
    with queue.sessions() as session:
        engine = session.get_one(Engine, ENGINE)
        assert (engine.adapters, "lora" in (engine.takes or ())) == (["legal"], True)
