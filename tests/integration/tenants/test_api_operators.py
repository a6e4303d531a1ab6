"""What operators do over HTTP: pause, drain and resume engines and tenants' queues."""

import secrets
from collections.abc import Iterator
from uuid import UUID

import httpx2
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, error_of
from claiming import claims
from jobs import ids, tenants
from jobs.database import database_now
from jobs.engines import registry
from jobs.models import Engine, Tenant
from jobs.scheduling import halts
from jobs.scheduling.halts import Operator
from jobs.states.halt import HaltKind
from jobs.tenants import keys
from jobs.tenants.keys import NewKey, Scope
from support import API_KEY, CAPACITY, ENGINE, POLICY, eventually

SERVED_MODEL = "llama-3.1-8b-instruct"


@pytest.fixture
def engine_is_up(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:  # noqa: ARG001  # after it is empty
    with sessions.begin() as session:
        registry.register(session, ENGINE, SERVED_MODEL, CAPACITY, now=database_now(session))


@pytest.fixture
def tenant(sessions: sessionmaker[Session]) -> tuple[UUID, NewKey]:
    """A tenant with a key of its own."""
    with sessions.begin() as session:
        row = tenants.create(session, f"t-{secrets.token_hex(4)}")
        scopes = [Scope.SUBMIT, Scope.READ]
        return row.id, keys.create(session, tenant_id=row.id, name="theirs", scopes=scopes)


@pytest.fixture
def theirs(server: ApiProcess, tenant: tuple[UUID, NewKey]) -> Iterator[httpx2.Client]:
    with server.client(api_key=tenant[1].secret) as client:
        yield client


def pause(http: httpx2.Client, what: str, reason: str = "new driver", verb: str = "pause") -> httpx2.Response:
    return http.post(f"{what}/{verb}", json={"reason": reason})


def claims_anything(sessions: sessionmaker[Session]) -> bool:
    with sessions() as session:
        return claims.claim(session, ENGINE, POLICY) is not None


@pytest.mark.usefixtures("engine_is_up")
def test_an_engine_is_paused_and_resumed_and_its_jobs_say_so(
    http: httpx2.Client, theirs: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    path = theirs.post("/v1/jobs", json={"input": "a"}).headers["location"]
    engine = f"/v1/engines/{ENGINE}"
    paused = pause(http, engine).json()
    by = {"key": f"lb_{keys.handle_of(API_KEY)}", "name": "tests"}
    assert (paused["state"], paused["reason"], paused["by"]) == ("paused", "new driver", by)
    assert paused["since"]
    assert API_KEY not in str(paused)
    assert http.get(engine).json() == paused
    assert http.get("/v1/engines").json()["data"] == [paused]
    assert not claims_anything(sessions)
    found = eventually(lambda: (queue := theirs.get(path).json()["queue"])["detail"] and queue)
    assert found["reason"] == "engine_paused"
    assert found["detail"] == f"engine {ENGINE} paused by tests: new driver"
    assert pause(http, engine, verb="drain").json()["state"] == "drained"
    resumed = http.post(f"{engine}/resume", json={"reason": "it is there"}).json()
    assert [resumed[name] for name in ("state", "reason", "by", "since")] == ["running", None, None, None]
    eventually(lambda: theirs.get(path).json()["queue"]["reason"] is None)
    assert claims_anything(sessions)


@pytest.mark.usefixtures("engine_is_up")
def test_a_tenant_s_queue_is_paused_by_id_or_name_and_others_go_on(
    http: httpx2.Client,
    theirs: httpx2.Client,
    tenant: tuple[UUID, NewKey],
    sessions: sessionmaker[Session],
) -> None:
    with sessions() as session:
        name = session.scalars(select(Tenant.name).where(Tenant.id == tenant[0])).one()
    queue = f"/v1/tenants/{ids.tenant_id(tenant[0])}/queue"
    paused = pause(http, queue, "unpaid").json()
    assert (paused["state"], paused["tenant"], paused["num_running"]) == ("paused", name, 0)
    assert http.get(f"/v1/tenants/{name}/queue").json() == paused
    accepted = theirs.post("/v1/jobs", json={"input": "a"})
    assert accepted.status_code == 202
    path = accepted.headers["location"]
    found = eventually(lambda: (queue := theirs.get(path).json()["queue"])["detail"] and queue)
    assert (found["reason"], found["detail"]) == ("queue_paused", "queue paused by tests: unpaid")
    assert not claims_anything(sessions)
    http.post("/v1/jobs", json={"input": "a"})
    assert claims_anything(sessions), "another tenant's job starts"
    assert http.post(f"/v1/tenants/{name}/queue/resume").json()["state"] == "running"
    eventually(lambda: theirs.get(path).json()["queue"]["reason"] is None)


def test_a_tenant_pauses_its_own_queue_and_resumes_no_operator_s_pause(
    http: httpx2.Client,
    theirs: httpx2.Client,
    tenant: tuple[UUID, NewKey],
    server: ApiProcess,
    sessions: sessionmaker[Session],
) -> None:
    operators = f"/v1/tenants/{ids.tenant_id(tenant[0])}/queue"
    assert theirs.get("/v1/queue").json()["state"] == "running"
    own = pause(theirs, "/v1/queue", "our release").json()
    assert (own["state"], own["by"]["name"]) == ("paused", "theirs")
    assert http.get(operators).json() == own == theirs.get("/v1/queue").json()
    assert pause(theirs, "/v1/queue", "still", verb="drain").json()["state"] == "drained"
    assert theirs.post("/v1/queue/resume").json()["state"] == "running"
    pause(theirs, "/v1/queue")
    pause(http, operators, "unpaid")
    for verb in ("pause", "drain", "resume"):
        refused = pause(theirs, "/v1/queue", verb=verb)
        assert (refused.status_code, error_of(refused)["code"]) == (409, "conflict")
        assert error_of(refused)["message"] == "An operator paused this queue: unpaid"
    assert theirs.get("/v1/queue").json()["reason"] == "unpaid"
    with sessions.begin() as session:
        every = keys.create(session, tenant_id=tenant[0], name="", scopes=list(Scope))
    with server.client(api_key=every.secret) as overriding:
        assert overriding.post("/v1/queue/resume").json()["state"] == "running"
        assert pause(overriding, "/v1/queue").json()["state"] == "paused"
    assert theirs.post("/v1/queue/resume").status_code == 409


def test_the_command_line_s_pause_is_an_operator_s(
    theirs: httpx2.Client, tenant: tuple[UUID, NewKey], sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        halts.halt_queue(session, tenant[0], HaltKind.PAUSE, reason="unpaid", by=Operator())
    assert theirs.post("/v1/queue/resume").status_code == 409
    assert theirs.get("/v1/queue").json()["by"] == {"key": None, "name": "the command line"}


@pytest.mark.usefixtures("engine_is_up")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{}", "missing_field"),
        (b'{"reason": ""}', "invalid_value"),
        (b'{"reason": "  "}', "invalid_value"),
        (b'{"reason": "a\\u0000b"}', "invalid_value"),
        (b'{"reason": "a\\u001b[2J"}', "invalid_value"),
        (b'{"reason": "a\\nb"}', "invalid_value"),
        (b'{"reason": "\\ud800"}', "invalid_value"),
        (b'{"reason": "' + b"x" * 301 + b'"}', "invalid_value"),
        (b'{"reason": "a", "until": 1}', "unknown_field"),
    ],
)
def test_a_reason_is_one_line_that_can_be_shown(
    http: httpx2.Client, sessions: sessionmaker[Session], body: bytes, code: str
) -> None:
    refused = http.post(f"/v1/engines/{ENGINE}/pause", content=body)
    assert (refused.status_code, error_of(refused)["code"]) == (400, code)
    with sessions() as session:
        assert session.scalars(select(Engine.halt)).all() == [None]


@pytest.mark.usefixtures("engine_is_up")
def test_what_is_not_there_is_404(http: httpx2.Client) -> None:
    for what in ("nowhere", "a%00b", "%ff", "x" * 300, "a%2Fb"):
        for path in (f"/v1/engines/{what}", f"/v1/tenants/{what}/queue"):
            assert http.get(path).status_code == 404, path
            assert pause(http, path).status_code == 404, path


def test_an_engine_s_name_may_hold_a_slash(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        registry.register(session, "host/gpu 0", SERVED_MODEL, CAPACITY, now=database_now(session))
    assert pause(http, "/v1/engines/host/gpu%200").json()["id"] == "host/gpu 0"
    assert http.get("/v1/engines/host%2Fgpu%200").json()["state"] == "paused"


@pytest.mark.usefixtures("engine_is_up")
@pytest.mark.parametrize("scope", [Scope.ADMIN, Scope.READ, Scope.SUBMIT])
def test_no_other_scope_operates(server: ApiProcess, sessions: sessionmaker[Session], scope: Scope) -> None:
    with sessions.begin() as session:
        tenant = tenants.named(session, "default")
        made = keys.create(session, tenant_id=tenant.id, name="", scopes=[scope])
    with server.client(api_key=made.secret) as other:
        for path in (f"/v1/engines/{ENGINE}", "/v1/tenants/default/queue"):
            assert error_of(other.get(path))["code"] == "insufficient_scope"
            assert error_of(pause(other, path))["code"] == "insufficient_scope"
