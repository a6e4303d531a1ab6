"""Workers share an engine's row only if they agree on what it is; no job is answered by another model."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import queries
from jobs.database import database_now, transaction
from jobs.engines import registry, workers
from jobs.engines.identity import EngineIdentity, EngineNameTakenError
from jobs.engines.workers import WorkerReport
from jobs.ids import uuid7
from jobs.models import Engine, Worker
from jobs.prompts.tokenizer import Tokenizer
from jobs.scheduling import tick
from jobs.settings import DatabaseSettings, EngineSettings, EngineSide, Settings, TritonSettings
from stand_in_engine import StandIn, standing_in
from support import CAPACITY, ENGINE, PATIENCE, POLICY, eventually, register_engine, spec, submit_one
from worker.engine.address import address_of
from worker.engine.client import EngineModel
from worker.inference.monitor import EngineMonitor
from worker_suite import settings_of_worker
from worker_support import MODEL, REPOSITORY, Queue, running_worker

LLAMA = EngineIdentity("llama", "llama-3.1-8b", "f" * 64, "http://gpu-1:8000")


@pytest.fixture
def server() -> Iterator[StandIn]:
    with standing_in("vllm") as stand_in:
        yield stand_in


def settings(
    database: DatabaseSettings, valkey: EmbeddedValkey, server: StandIn, *, model: str = MODEL
) -> Settings:
    engine = EngineSettings.model_validate({"url": server.url, "max_batch_size": 4})
    found = settings_of_worker(database, valkey.url, engine)
    return found.model_copy(update={"engine": found.engine.model_copy(update={"model": model})})


def usage(queue: Queue) -> queries.EngineUsage:
    with queue.sessions() as session:
        (found,) = queries.engine_usages(session)
        return found


def refusals(queue: Queue) -> list[str | None]:
    with queue.sessions() as session:
        return [*session.scalars(select(Worker.refusal).where(Worker.refusal.is_not(None)))]


def refusal_of(queue: Queue, words: str) -> str:
    """The refusal with these words, once there is one."""
    found = eventually(lambda: next((each for each in refusals(queue) if words in (each or "")), None))
    assert found is not None
    return found


def tries_of(monitor: EngineMonitor) -> threading.Semaphore:
    """One release for each further try to register."""
    tries, register = threading.Semaphore(0), monitor._register

    def counted(model: EngineModel) -> None:
        register(model)
        tries.release()

    monitor._register = counted  # type: ignore[method-assign]  # it does the same
    return tries


def test_two_workers_with_one_name_and_two_models_never_answer_each_other_s_jobs(
    queue: Queue,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    tokenizer: Tokenizer,
    server: StandIn,
) -> None:
    with standing_in("vllm") as other:
        mine = settings(database_settings, valkey, server)
        theirs = settings(database_settings, valkey, other, model="other-model")
        feeding, refusing = running_worker(mine, tokenizer), running_worker(theirs, tokenizer, is_ready=False)
        with feeding, refusing as refused:
            found = refusal_of(queue, f"the engine name '{ENGINE}' is in use for another engine")
            assert f"model {MODEL}, not other-model" in found
            assert "LONGBATCH_ENGINE__NAME" in found
            tries = tries_of(refused.monitor)
            assert tries.acquire(timeout=PATIENCE)
            refused.heartbeat.run_once()
            assert refusals(queue) == [found], "each try leaves it refused"
            shown = usage(queue)
            assert (shown.engine.model, shown.not_ready_reason) == (MODEL, None)
            assert shown.refused is not None
            assert shown.refused.refusal == found
            waiting = queue.submit("Of the other model.", max_tokens=4, model="other-model")
            assert queue.ended(queue.submit("Of this model.", max_tokens=4)).state == "completed"
            assert refused.monitor.model is None
        assert queue.job(waiting).state == "queued", "nobody serves its model"
        with running_worker(theirs, tokenizer):  # the name is free as soon as its last worker has stopped
            assert queue.ended(waiting).state == "completed"
        assert len(other.bodies) == 1
    assert len(server.bodies) == 1


def test_workers_that_agree_share_an_engine(
    queue: Queue,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    tokenizer: Tokenizer,
    server: StandIn,
) -> None:
    mine = settings(database_settings, valkey, server)
    aliased = mine.engine.model_copy(
        update={"served_model": "served", "url": server.url.replace("127.0.0.1", "localhost")}
    )
    with (
        running_worker(mine, tokenizer),
        running_worker(mine.model_copy(update={"engine": aliased}), tokenizer),
    ):
        assert refusals(queue) == []
        assert queue.ended(queue.submit("Whoever takes it.", max_tokens=4)).state == "completed"


def test_an_engine_with_another_tokenizer_gets_no_job(
    queue: Queue,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    tokenizer: Tokenizer,
    server: StandIn,
) -> None:
    server.tokenizes = lambda text: [*text.encode()]
    job_id = queue.submit("In the wrong ids.", max_tokens=4)
    with running_worker(settings(database_settings, valkey, server), tokenizer, is_ready=False):
        refusal_of(queue, "LONGBATCH_TOKENIZER__PATH")
        shown = usage(queue)
        assert (shown.engine.name, shown.engine.max_batch_size) == (ENGINE, 0)
        assert "tokenizer: the server's gives" in str(shown.not_ready_reason)
        assert queue.job(job_id).state == "queued"
        assert server.bodies == []
        server.tokenizes = lambda text: tokenizer.markup.read(text).tolist()
        assert queue.ended(job_id).state == "completed", "it is looked at again"


def test_a_worker_whose_row_is_another_engine_s_claims_nothing_and_says_so(
    queue: Queue,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    tokenizer: Tokenizer,
    server: StandIn,
) -> None:
    with running_worker(settings(database_settings, valkey, server), tokenizer) as worker:
        with transaction(queue.sessions) as session:
            report(session)
            session.execute(update(Engine).values(address="http://gpu-2:8000", seen_at=database_now(session)))
        job_id = queue.submit("For the other one.", max_tokens=4)
        eventually(lambda: worker.monitor.model is None)
        refusal_of(queue, "address http://gpu-2:8000")
        assert queue.job(job_id).state == "queued"
        with transaction(queue.sessions) as session:
            workers.forget(session, [REPORT.id])  # the other one stops
        assert queue.ended(job_id).state == "completed"


REPORT = WorkerReport(uuid7(), "inference", "gpu-2:17", None, engine_name=ENGINE, model="llama")


def report(session: Session, **changed: str) -> None:
    workers.report(session, replace(REPORT, **changed))  # type: ignore[arg-type]  # fields of text


def register(session: Session, identity: EngineIdentity) -> None:
    registry.register(
        session,
        ENGINE,
        identity.model,
        CAPACITY,
        now=database_now(session),
        identity=identity,
        worker_id=uuid7(),
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "qwen"}, "model llama, not qwen"),
        ({"served_model": "qwen3-8b"}, "served model llama-3.1-8b, not qwen3-8b"),
        ({"tokenizer": "0" * 64}, "tokenizer ffffffffffff, not 000000000000"),
        ({"address": "http://gpu-2:8000"}, "address http://gpu-1:8000, not http://gpu-2:8000"),
    ],
)
def test_a_name_in_use_is_refused_with_what_differs(
    sessions: sessionmaker[Session], changed: dict[str, str], words: str
) -> None:
    with transaction(sessions) as session:
        register(session, LLAMA)
        report(session)
    with sessions() as session, pytest.raises(EngineNameTakenError) as refused:
        register(session, replace(LLAMA, **changed))
    assert words in refused.value.message


def test_a_name_is_free_once_its_workers_have_gone_or_its_row_is_stale(
    sessions: sessionmaker[Session],
) -> None:
    other = replace(LLAMA, model="qwen")
    with transaction(sessions) as session:
        register(session, LLAMA)
        register(session, other)  # no worker holds it
        report(session, refusal="its engine loads")
        register(session, LLAMA)  # none that feeds it
        report(session)
        session.execute(update(Engine).values(seen_at=database_now(session) - registry.SILENT))
        register(session, other)
        assert session.scalar(select(Engine.model)) == "qwen"


def test_a_tick_claims_nothing_for_an_engine_that_is_another_one_by_now(session: Session) -> None:
    register(session, LLAMA)
    submit_one(session, replace(spec(100), model="llama"))
    mine = replace(POLICY, identity=LLAMA)
    for stranger in (
        replace(LLAMA, served_model="x"),
        replace(LLAMA, address="x"),
        replace(LLAMA, model="x"),
    ):
        found = tick.tick(session, ENGINE, replace(POLICY, identity=stranger), ended=[])
        assert not found.claims
    assert len(tick.tick(session, ENGINE, mine, ended=[]).claims) == 1


def test_an_engine_whose_worker_does_not_tick_is_not_ready(session: Session) -> None:
    register_engine(session)
    past = database_now(session) - registry.SILENT * 2
    session.execute(update(Engine).values(ticked_at=past))
    session.expire_all()
    (found,) = queries.engine_usages(session)
    assert "has not looked for jobs since" in str(found.not_ready_reason)
    tick.tick(session, ENGINE, POLICY, ended=[])
    session.expire_all()
    (found,) = queries.engine_usages(session)
    assert found.not_ready_reason is None


def engine_at(url: str | None, triton: str = "127.0.0.1:8001") -> str:
    return address_of(EngineSide(engine=EngineSettings(url=url), triton=TritonSettings(url=triton)))


ISOLATED = ["unshare", "--user", "--map-root-user", "--net"]


@pytest.mark.skipif(
    subprocess.run([*ISOLATED, "true"], check=False, capture_output=True).returncode != 0,
    reason="this user may make no network namespace",
)
def test_the_loopback_addresses_of_two_hosts_are_two_engines() -> None:
    code = "from jobs.settings import *; from worker.engine.address import address_of; "
    code += "print(address_of(EngineSide(engine=EngineSettings(url='http://127.0.0.1:8000'))))"
    elsewhere = subprocess.run(
        [*ISOLATED, sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=REPOSITORY
    ).stdout.strip()
    assert elsewhere.startswith("http://loopback:8000 of host ")
    assert elsewhere != engine_at("http://127.0.0.1:8000")


def test_an_address_is_the_same_however_it_is_written_and_a_loopback_one_is_of_its_host() -> None:
    assert (
        engine_at("http://GPU-1.lan.:8000/") == engine_at("http://gpu-1.lan:8000") == "http://gpu-1.lan:8000"
    )
    assert engine_at("https://gpu-1") == "https://gpu-1:443"
    unspecified = ("0.0.0.0", "[::]")  # noqa: S104  # to connect to, where they mean this host
    hosts = ("127.0.0.1", "localhost", "[::1]", "127.0.0.2", "127.1", "[::ffff:127.0.0.1]", *unspecified)
    local = {engine_at(f"http://{host}:8000") for host in hosts}
    assert len(local) == 1
    assert not local & {engine_at("http://gpu-1:8000"), "http://127.0.0.1:8000"}
    assert engine_at(None) == engine_at("grpc://localhost:8001")
