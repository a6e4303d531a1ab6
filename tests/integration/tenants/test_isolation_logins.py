"""Logins of their own for API and workers: each can do its work, and no more."""

import secrets
from collections.abc import Iterator

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess, serving
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import database, fitting, leases, lifecycle, tenants
from jobs.database import database_now
from jobs.deletion import prune_events, prune_idempotency_keys, prune_jobs
from jobs.engines import reservations
from jobs.models import DEFAULT_TENANT, Job
from jobs.settings import DatabaseSettings
from jobs.states import FinishReason
from jobs.tenants import isolation, usage
from jobs.tenants.isolation import APP_ROLE, WORKER_ROLE, TenantSession
from support import (
    MODEL,
    claim_one,
    eventually,
    output_of,
    prepare_next,
    register_engine,
    spec,
    submit_one,
)


@pytest.fixture
def mine(sessions: sessionmaker[Session]) -> Job:
    with sessions.begin() as session:
        return submit_one(session)


@pytest.fixture
def theirs(sessions: sessionmaker[Session]) -> Job:
    with sessions.begin() as session:
        tenant = tenants.create(session, f"t-{secrets.token_hex(4)}")
        return submit_one(session, tenant_id=tenant.id)


@pytest.fixture
def logins(engine: Engine, database_settings: DatabaseSettings) -> Iterator[dict[str, DatabaseSettings]]:
    """Logins as a careful operator makes them: one for the API, one for workers, one with neither role."""
    url = make_url(database_settings.url.get_secret_value())
    roles = {"api": [APP_ROLE, WORKER_ROLE], "worker": [WORKER_ROLE], "stranger": []}
    found = {}
    with engine.begin() as connection:
        for name, groups in roles.items():
            login = f"test_{name}_{secrets.token_hex(3)}"
            connection.execute(text(f"CREATE ROLE {login} LOGIN PASSWORD 'x'"))
            for group in groups:
                connection.execute(text(f"GRANT {group} TO {login}"))
            if not groups:
                connection.execute(text(f"GRANT SELECT ON jobs TO {login}"))
            named = url.set(username=login, password="x").render_as_string(hide_password=False)
            found[name] = DatabaseSettings(url=SecretStr(named))
    yield found
    with engine.begin() as connection:
        for settings in found.values():
            login = str(make_url(settings.url.get_secret_value()).username)
            connection.execute(text(f"DROP OWNED BY {login}"))
            connection.execute(text(f"DROP ROLE {login}"))


def test_each_login_sees_what_it_needs(logins: dict[str, DatabaseSettings], mine: Job, theirs: Job) -> None:
    for name, expected in (("api", {mine.id}), ("worker", {mine.id, theirs.id})):
        made = database.make_engine(logins[name], pool_size=1)
        with TenantSession(made) as session:
            if name == "api":
                isolation.enter(session, [DEFAULT_TENANT])
                assert isolation.is_bound(session)
            assert set(session.scalars(text("SELECT id FROM jobs"))) == expected
        made.dispose()


def test_a_login_without_roles_sees_nobody_s_rows(
    logins: dict[str, DatabaseSettings], mine: Job, theirs: Job
) -> None:
    assert mine.tenant_id != theirs.tenant_id
    made = database.make_engine(logins["stranger"], pool_size=1)
    with TenantSession(made) as session:
        assert session.scalars(text("SELECT id FROM jobs")).all() == []
        isolation.enter(session, [DEFAULT_TENANT])
        assert not isolation.is_bound(session)
        assert "does not bind" in isolation.describe(isolation.is_bound(session))
        assert session.scalars(text("SELECT id FROM jobs")).all() == [mine.id]
    made.dispose()


def test_a_worker_s_login_can_do_all_that_workers_do(
    logins: dict[str, DatabaseSettings],
    sessions: sessionmaker[Session],  # noqa: ARG001  # without jobs
) -> None:
    made = database.make_engine(logins["worker"], pool_size=1)
    with Session(made) as session, session.begin():
        register_engine(session)
        submit_one(session, spec(None))
        assert prepare_next(session) is not None
        lease = claim_one(session).lease
        leases.renew(session, [lease], lease=database_now(session) - database_now(session))
        ending.checkpoint(session, lease, output_of("a"))
        ending.release(session, lease, output_of("a"))
        reservations.close(session, lease.lease_id)
        lease = claim_one(session).lease
        assert ending.complete(session, lease, output_of("ab"), FinishReason.STOP)
        reservations.close(session, lease.lease_id)
        lifecycle.expire(session, now=database_now(session))
        lifecycle.rescue(session, now=database_now(session), max_rescues=2)
        fitting.reject_misfits(session)
        assert usage.add_up(session) == 1
        now = database_now(session)
        assert (prune_jobs(session, before=now), prune_events(session, before=now)) == (1, 1)
        prune_idempotency_keys(session, before=now)
    made.dispose()


def test_the_api_s_login_can_do_all_that_the_api_does(
    logins: dict[str, DatabaseSettings], valkey: EmbeddedValkey, sessions: sessionmaker[Session], theirs: Job
) -> None:
    with (
        serving(logins["api"], valkey.url, LONGBATCH_ENGINE__MODEL=MODEL) as process,
        process.client() as http,
    ):
        sent = {"input": "a", "max_tokens": 8}
        job = http.post("/v1/jobs", json=sent, headers={"Idempotency-Key": "k"}).json()
        assert http.post("/v1/jobs", json=sent, headers={"Idempotency-Key": "k"}).json()["id"] == job["id"]
        assert http.post("/v1/jobs/bulk", content=b'{"input":"b"}\n' * 3).json()["accepted"] == 3
        assert http.post("/v1/jobs", json=sent).status_code == 202
        path = f"/v1/jobs/{job['id']}"
        with sessions.begin() as session:
            register_engine(session)
        place = eventually(lambda: http.get(path).json()["queue"])
        assert place["position"], "theirs stands in the same queue"
        with sessions.begin() as session:
            lifecycle.cancel(session, theirs.id, tenant_id=theirs.tenant_id)
            ending.complete(session, claim_one(session).lease, output_of("ab"), FinishReason.STOP)
        done = http.get("/v1/jobs", params={"state": "completed"}).json()["data"]
        assert http.get(f"/v1/jobs/{done[0]['id']}/result").json()["output"] == "ab"
        assert http.delete(f"/v1/jobs/{done[0]['id']}").status_code == 200
        assert http.post("/v1/jobs/cancel", json={"state": "queued"}).json()["cancelled"] == 4
        assert http.get("/v1/usage").json()["data"][0]["num_jobs"]["cancelled"] == 4
        ready = http.get("/health/ready").json()["components"]["database"]
        assert ready["ready"], ready
        assert "row-level security binds the API" in ready["detail"]
        assert "longbatch_database_up 1.0" in http.get("/metrics").text


def test_readiness_says_when_nothing_binds(
    logins: dict[str, DatabaseSettings], valkey: EmbeddedValkey, engine: Engine
) -> None:
    login = make_url(logins["stranger"].url.get_secret_value()).username
    with engine.begin() as connection:
        connection.execute(text(f"GRANT SELECT ON alembic_version, api_keys TO {login}"))
    process = ApiProcess(logins["stranger"], valkey.url)
    try:
        with process.client() as http:
            found = http.get("/health/ready").json()["components"]["database"]
            assert found["ready"]
            assert "does not bind the API" in found["detail"]
    finally:
        process.stop()
