import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from api import server as api_program
from api_server import ApiProcess, error_of, serving
from cli.stack.ports import free_port
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell
from jobs.engines import registry, workers
from jobs.engines.workers import WorkerReport
from jobs.ids import uuid7
from jobs.scheduling import halts
from jobs.scheduling.halts import Operator
from jobs.settings import ApiSettings, BrokerSettings, DatabaseSettings, Settings
from jobs.states.halt import HaltKind
from support import (
    ENGINE,
    MODEL,
    PATIENCE,
    eventually,
    num_waiting_for_locks,
    refusing,
    register_engine,
    submit_one,
)
from tls_support import make_pair


@contextmanager
def api(database: DatabaseSettings, broker_url: str, **variables: str) -> Iterator[ApiProcess]:
    process = ApiProcess(database, broker_url, **variables)
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def frozen_broker() -> Iterator[str]:
    """A listener that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def test_a_frozen_broker_delays_no_submission_and_no_probe(
    database_settings: DatabaseSettings,
    sessions: sessionmaker[Session],  # noqa: ARG001  # without jobs
    frozen_broker: str,
) -> None:
    with api(database_settings, frozen_broker) as process, process.client() as http:
        http.post("/v1/jobs", json={"input": "warm"})
        for _ in range(20):
            assert http.post("/v1/jobs", json={"input": "a"}).status_code == 202
        ready = http.get("/health/ready")
        assert ready.json()["components"]["broker"]["ready"] is False


@contextmanager
def broadcasts(broker: redis.Redis) -> Iterator[Callable[[], bytes]]:
    """Subscribe to all messages; returns the next one."""
    with broker.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.psubscribe("*")
        subscription.get_message(timeout=PATIENCE)  # it is subscribed
        yield lambda: eventually(lambda: subscription.get_message(timeout=PATIENCE))["data"]


def test_a_submitted_job_rings_the_doorbell(http: httpx2.Client, valkey: EmbeddedValkey) -> None:
    with (
        closing(doorbell.connect(valkey.url, socket_timeout=3)) as broker,
        broadcasts(broker) as next_message,
    ):
        http.post("/v1/jobs", json={"input": "a"})
        assert doorbell.WAKE_TASKS[doorbell.INFERENCE].encode() in next_message()
        http.post("/v1/jobs", json={"input": "a long one " * 5000})
        assert doorbell.WAKE_TASKS[doorbell.SERVICE].encode() in next_message()


def test_a_full_pool_answers_503_and_recovers(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, sessions: sessionmaker[Session]
) -> None:
    small = {"LONGBATCH_DATABASE__POOL_SIZE": "1", "LONGBATCH_DATABASE__POOL_TIMEOUT_SECONDS": "0.2"}
    with (
        api(database_settings, valkey.url, **small) as process,
        process.client() as http,
        ThreadPoolExecutor(1) as pool,
    ):
        with sessions.begin() as session:
            session.execute(text("LOCK TABLE texts IN ACCESS EXCLUSIVE MODE"))
            stuck = pool.submit(http.post, "/v1/jobs", json={"input": "a"})
            eventually(lambda: num_waiting_for_locks(sessions))  # it has the only connection
            refused = eventually(lambda: (a := http.get("/v1/jobs")).status_code != 200 and a)
            assert (refused.status_code, error_of(refused)["code"]) == (503, "unavailable")
            assert refused.headers["retry-after"]
            assert http.get("/health/live").status_code == 200
        assert stuck.result().status_code == 202
        assert http.get("/v1/jobs").status_code == 200


def test_a_database_that_is_down_answers_503(valkey: EmbeddedValkey) -> None:
    nowhere = DatabaseSettings(url=SecretStr(f"postgresql://a:secret-7f3a@127.0.0.1:{free_port()}/b"))
    with api(nowhere, valkey.url) as process, process.client() as http:
        for answer in (
            http.get("/v1/jobs"),
            http.post("/v1/jobs", json={"input": "a"}),
            http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 5),
            http.get("/v1/jobs/job_" + "0" * 32 + "?wait=5"),
        ):
            assert (answer.status_code, error_of(answer)["code"]) == (503, "unavailable")
            assert "secret-7f3a" not in answer.text
        assert "longbatch_database_up 0.0" in http.get("/metrics").text
        assert http.get("/health/ready").json()["components"]["database"]["ready"] is False


def test_a_full_disk_answers_503_and_work_is_accepted_once_there_is_room(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    def upload() -> httpx2.Response:
        return http.post("/v1/files", files={"file": ("in.jsonl", b"{}")}, data={"purpose": "batch"})

    full = [f"BEFORE INSERT ON {table} FOR EACH ROW" for table in ("jobs", "file_parts")]
    with refusing(sessions, *full, code="disk_full"):
        for answer in (
            http.post("/v1/jobs", json={"input": "a"}),
            http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 5),
            upload(),
        ):
            assert (answer.status_code, error_of(answer)["code"]) == (503, "storage_full")
            assert answer.headers["retry-after"]
        assert http.get("/v1/jobs").json()["data"] == []
    assert http.post("/v1/jobs", json={"input": "a"}).status_code == 202
    assert upload().status_code == 200


def test_connections_that_postgres_closed_are_replaced(http: httpx2.Client, engine: Engine) -> None:
    http.get("/v1/jobs")
    with engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'longbatch-api'"
            )
        )
    assert http.get("/v1/jobs").status_code == 200


SERVICE_WORKER = WorkerReport(uuid7(), "service", "host-1:17", None)


def test_readiness_names_every_part(
    http: httpx2.Client, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    def component(name: str) -> dict[str, Any]:
        found: dict[str, Any] = http.get("/health/ready").json()["components"][name]
        return found

    eventually(lambda: component("tokenizer")["ready"])
    missing = http.get("/health/ready")
    assert missing.status_code == 503
    components = missing.json()["components"]
    assert {name: part["ready"] for name, part in components.items()} == {
        "database": True,
        "broker": True,
        "engine": False,
        "workers": False,
        "tokenizer": True,
    }
    assert missing.json()["error"]["message"] == "Not ready: engine, workers."
    with sessions.begin() as session:
        register_engine(session)
        workers.report(session, SERVICE_WORKER)
    assert (http.get("/health/ready").status_code, http.get("/health/ready").json()["ready"]) == (200, True)
    with sessions.begin() as session:
        registry.pause(session, ENGINE, "engine_unavailable")
    assert "engine_unavailable" in component("engine")["detail"]
    assert server.process.poll() is None


def test_readiness_is_red_while_no_worker_looks_for_jobs(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    def component(name: str) -> tuple[bool, str]:
        found = http.get("/health/ready").json()["components"][name]
        return found["ready"], found["detail"]

    long_ago = text("UPDATE engines SET ticked_at = ticked_at - interval '31 seconds'")
    with sessions.begin() as session:
        register_engine(session)
        session.execute(long_ago)
    ready, detail = component("engine")
    assert not ready
    assert "has not looked for jobs since" in detail
    with sessions.begin() as session:
        register_engine(session, name="another")
    assert component("engine")[0], "one that works is enough for a model"
    with sessions.begin() as session:
        register_engine(session, name="third", model="another-model")
        session.execute(long_ago)
        session.execute(text("UPDATE engines SET ticked_at = now() WHERE name <> 'third'"))
    ready, detail = component("engine")
    assert (ready, detail.partition(":")[0]) == (False, "third"), "each model needs one"
    with sessions.begin() as session:
        halts.halt_engine(session, "third", HaltKind.DRAIN, reason="replaced", by=Operator())
    assert component("engine")[0], "an operator took it out"


def test_readiness_is_red_while_jobs_wait_for_a_model_that_no_engine_serves(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    def component() -> tuple[bool, str]:
        found = http.get("/health/ready").json()["components"]["engine"]
        return found["ready"], found["detail"]

    with sessions.begin() as session:
        register_engine(session)
        submit_one(session)
        session.execute(text("UPDATE engines SET model = 'another-model'"))
    assert component() == (False, f"no engine serves the model {MODEL!r}, for which jobs wait")
    with sessions.begin() as session:
        session.execute(text("UPDATE jobs SET model = 'another-model'"))
    assert component()[0]


def test_readiness_names_a_worker_that_feeds_no_engine_although_another_one_does(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    refused = replace(SERVICE_WORKER, role="inference", engine_name=ENGINE, refusal="the name is in use")
    with sessions.begin() as session:
        register_engine(session)
        workers.report(session, refused)
    component = http.get("/health/ready").json()["components"]["engine"]
    assert component["ready"]
    assert component["detail"].endswith("; host-1:17 feeds no engine: the name is in use")


def test_readiness_names_the_loops_of_workers_that_are_late(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    def component() -> tuple[bool, str]:
        found = http.get("/health/ready").json()["components"]["workers"]
        return found["ready"], found["detail"]

    assert component() == (False, "no service worker has reported within 30 s")
    with sessions.begin() as session:
        workers.report(session, replace(SERVICE_WORKER, late_loops=("deliver", "prepare")))
    assert component() == (False, "host-1:17 (service): deliver, prepare late")
    with sessions.begin() as session:
        workers.report(session, replace(SERVICE_WORKER, id=uuid7()))
    assert component() == (True, "host-1:17 (service): deliver, prepare late"), "the other does all of it"
    with sessions.begin() as session:
        session.execute(text("UPDATE workers SET seen_at = seen_at - interval '31 seconds'"))
    assert not component()[0]


def test_it_stops_at_once_and_answers_those_who_wait(
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    sessions: sessionmaker[Session],  # noqa: ARG001  # without jobs
) -> None:
    with (
        api(database_settings, valkey.url) as process,
        process.client(timeout=70) as http,
        ThreadPoolExecutor(20) as pool,
    ):
        path = http.post("/v1/jobs", json={"input": "a"}).headers["location"]
        waits = [pool.submit(http.get, f"{path}?wait=60") for _ in range(20)]
        eventually(lambda: "longbatch_http_open_requests 21.0" in http.get("/metrics").text)
        assert process.stop(timeout=30) == 0, "it waits for no wait"
        assert {wait.result().status_code for wait in waits} == {200}


def test_no_prompt_reaches_the_log_or_the_broker(
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    sessions: sessionmaker[Session],
) -> None:
    canary = "canary-51c9"
    with api(database_settings, valkey.url) as process, process.client() as http:
        broker = doorbell.connect(valkey.url, socket_timeout=3)
        broker.flushdb()
        with broadcasts(broker) as next_message:
            http.post("/v1/jobs", json={"input": canary})
            assert canary.encode() not in next_message()
        http.post("/v1/jobs", json={"input": canary, canary: 1})
        with sessions.begin() as session:
            session.execute(text("ALTER TABLE texts RENAME TO hidden"))
        try:
            broken = http.post("/v1/jobs", json={"input": canary + "2"})
        finally:
            with sessions.begin() as session:
                session.execute(text("ALTER TABLE hidden RENAME TO texts"))
        assert (broken.status_code, error_of(broken)["code"]) == (500, "internal_error")
        assert broken.headers["x-request-id"] in "".join(eventually(lambda: process.lines[1:]))
        assert canary not in "".join(process.lines) + broken.text
        read: dict[bytes | str, Callable[[Any], Iterable[Any]]] = {
            b"list": lambda key: broker.lrange(key, 0, -1),
            b"set": broker.smembers,
            b"string": lambda key: [broker.get(key)],
        }
        stored = b"".join(each for key in broker.keys("*") for each in read[broker.type(key)](key))
        assert canary.encode() not in stored


def test_a_network_without_keys_is_refused(
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    sessions: sessionmaker[Session],
) -> None:
    refused = r"there are no API keys yet.*keys create"
    broker = BrokerSettings(url=SecretStr(valkey.url))
    with sessions.begin() as session:
        session.execute(text("UPDATE api_keys SET revoked_at = now()"))
    try:
        with pytest.raises(AssertionError, match=refused):
            ApiProcess(database_settings, valkey.url, LONGBATCH_API__HOST="0.0.0.0")  # noqa: S104  # must be refused
        for host in ("::", "example.com"):
            settings = Settings(database=database_settings, broker=broker, api=ApiSettings(host=host))
            with pytest.raises(ValueError, match=refused):
                api_program._refuse_network_without_keys(settings)
    finally:
        with sessions.begin() as session:
            session.execute(text("UPDATE api_keys SET revoked_at = NULL"))


def test_a_network_before_the_first_migration_is_refused(engine: Engine, valkey: EmbeddedValkey) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE bare"))
    try:
        url = engine.url.set(drivername="postgresql", database="bare")
        bare = DatabaseSettings(url=SecretStr(url.render_as_string(hide_password=False)))
        with pytest.raises(AssertionError, match="alembic upgrade head"):
            ApiProcess(bare, valkey.url, LONGBATCH_API__HOST="0.0.0.0")  # noqa: S104  # must be refused
    finally:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("DROP DATABASE bare"))


def test_a_certificate_that_cannot_be_served_is_refused(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    certificate, _ = make_pair(tmp_path, "box.example.com")
    _, other = make_pair(tmp_path, "other.example.com")
    files = {"LONGBATCH_API__TLS_CERTIFICATE": str(certificate), "LONGBATCH_API__TLS_KEY": str(other)}
    with pytest.raises(AssertionError, match=r"settings: api\.tls_certificate.*is not the key of"):
        ApiProcess(database_settings, valkey.url, **files)
    del files["LONGBATCH_API__TLS_KEY"]
    with pytest.raises(AssertionError, match=r"tls_certificate and tls_key must be set together"):
        ApiProcess(database_settings, valkey.url, **files)


def test_a_misspelt_setting_is_refused(database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> None:
    with pytest.raises(AssertionError, match=r"settings: api\.prot"):
        ApiProcess(database_settings, valkey.url, LONGBATCH_API__PROT="1")


def test_a_test_that_fails_leaves_no_service_running(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    with pytest.raises(ZeroDivisionError), serving(database_settings, valkey.url) as process:
        _ = 1 / 0
    assert process.process.poll() == 0
