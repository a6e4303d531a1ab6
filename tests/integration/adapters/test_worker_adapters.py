"""Adapters through a worker, on the local engine behind a real Triton server."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from jobs.adapters import registry
from jobs.adapters.files import check
from jobs.database import transaction
from jobs.models import Address, Engine
from jobs.settings import Settings
from weights.adapters import write_peft_adapter
from worker_support import ENGINE, MODEL, Queue, running_worker

Add = Callable[..., None]


@pytest.fixture
def add(queue: Queue, tmp_path: Path) -> Add:
    """Registers an adapter of this name."""

    def register(name: str, *, seed: int = 1) -> None:
        path = write_peft_adapter(tmp_path / name, seed=seed, layers=seed)
        with transaction(queue.sessions) as session:
            registry.add(session, Address(MODEL, name), check(path), source=str(path))

    return register


def answered(queue: Queue, adapter: str | None, *, max_tokens: int = 40) -> list[int]:
    job = queue.ended(queue.submit("Write.", max_tokens=max_tokens, adapter=adapter))
    assert (job.state, job.error) == ("completed", None)
    return queue.result_ids(job.id)


def test_jobs_are_answered_by_the_adapter_that_they_name(
    queue: Queue, feeding: Callable[..., Settings], add: Add
) -> None:
    add("legal", seed=1)
    add("medical", seed=2)
    with running_worker(feeding(), queue.tokenizer):
        names: list[str | None] = [None, "legal", "medical"]
        found = [answered(queue, each) for each in names]
        assert len({tuple(each) for each in found}) == len(names)
        assert [answered(queue, each) for each in names] == found
        # Over several segments it goes on with the adapter.
        long = answered(queue, "legal", max_tokens=3000)
        assert len(long) == 3000
        assert long[:40] == found[1]
        assert long != answered(queue, None, max_tokens=3000)
        with queue.sessions() as session:
            engine = session.get_one(Engine, ENGINE)
            assert (engine.adapters, "lora" in (engine.takes or ())) == (None, True)


def test_a_job_whose_adapter_is_removed_or_lost_fails_and_no_other(
    queue: Queue, feeding: Callable[..., Settings], add: Add, tmp_path: Path
) -> None:
    for seed, name in enumerate(("removed", "lost", "kept"), start=3):
        add(name, seed=seed)
    submitted: dict[str | None, UUID] = {
        name: queue.submit("Write.", max_tokens=20, adapter=name)
        for name in ("removed", "lost", "unknown", "kept", None)
    }
    with transaction(queue.sessions) as session:
        registry.remove(session, Address(MODEL, "removed"))
    (tmp_path / "lost" / "adapter_config.json").unlink()
    with running_worker(feeding(), queue.tokenizer):
        ended = {name: queue.ended(job_id) for name, job_id in submitted.items()}
    told = {name: (job.state, job.error and job.error["code"], job.attempt) for name, job in ended.items()}
    assert told == {
        "removed": ("failed", "adapter_removed", 0),
        "lost": ("failed", "unsupported_parameter", 0),
        "unknown": ("failed", "adapter_removed", 0),
        "kept": ("completed", None, 0),
        None: ("completed", None, 0),
    }
    assert not queue.reservations()
