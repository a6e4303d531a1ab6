"""The audit log: in the transaction of the change, append-only, each tenant's own, bounded in time."""

import json
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta

import httpx2
import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

from api_server import ApiProcess, error_of
from console_pages.browser import PROBE, Browser, browsing, new_key, new_tenant, words
from jobs import audit, ids, tenants
from jobs.audit import Action, Actor, ActorKind, Via
from jobs.database import database_now
from jobs.models import DEFAULT_TENANT, AuditEntry, Job
from jobs.settings import DatabaseSettings, JobSettings
from jobs.tenants import isolation
from jobs.tenants.isolation import TenantSession
from jobs.tenants.keys import Scope
from longbatch.cli.main import application
from support import API_KEY, refusing
from worker.maintenance import JobMaintenance

SOMEONE = Actor(ActorKind.OS_USER, "ops", Via.COMMAND_LINE)


@pytest.fixture
def stranger(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[httpx2.Client]:
    key = new_key(sessions, Scope.READ, Scope.SUBMIT, tenant_id=new_tenant(sessions))
    with server.client(api_key=key.secret) as client:
        yield client


def entries(sessions: sessionmaker[Session]) -> list[AuditEntry]:
    with sessions() as session:
        return list(session.scalars(select(AuditEntry).order_by(AuditEntry.id)))


def write(sessions: sessionmaker[Session], *actions: Action) -> None:
    """Entries of the default tenant, made on the command line."""
    with sessions.begin() as session:
        audit.act_as(session, SOMEONE)
        for action in actions:
            audit.note(session, action, "lb_0000000000000000", tenant_id=DEFAULT_TENANT)
            session.flush()


def test_a_change_whose_entry_cannot_be_written_does_not_happen(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    job_id = http.post("/v1/jobs", json={"input": "a"}).json()["id"]
    with refusing(sessions, "BEFORE INSERT ON audit_log FOR EACH ROW"):
        assert http.post(f"/v1/jobs/{job_id}/cancel").status_code == 500
        named = f"t-{secrets.token_hex(4)}"
        assert http.post("/v1/tenants", json={"name": named}).status_code == 500
    with sessions() as session:
        assert session.get_one(Job, ids.parse_job_id(job_id)).state == "queued"
        assert named not in {tenant.name for tenant, _ in tenants.list_tenants(session)}
    assert entries(sessions) == []


def test_nobody_changes_the_log_not_even_its_owner(sessions: sessionmaker[Session], engine: Engine) -> None:
    write(sessions, Action.KEY_CREATE)
    for statement in ("UPDATE audit_log SET actor_id = 'nobody'", "DELETE FROM audit_log"):
        with pytest.raises(DBAPIError, match="append-only"), sessions.begin() as session:
            session.execute(text(statement))
        with TenantSession(engine) as session:
            isolation.enter(session, [DEFAULT_TENANT])
            with pytest.raises(DBAPIError, match="permission denied"):
                session.execute(text(statement))
    assert len(entries(sessions)) == 1


def test_the_api_s_role_writes_no_entry_in_another_s_log(
    sessions: sessionmaker[Session], engine: Engine
) -> None:
    theirs = new_tenant(sessions)
    for tenant_id in (theirs, None):
        with TenantSession(engine) as session:
            isolation.enter(session, [DEFAULT_TENANT])
            audit.act_as(session, SOMEONE)
            audit.note(session, Action.KEY_CREATE, None, tenant_id=tenant_id)
            with pytest.raises(DBAPIError, match="row-level security"):
                session.flush()


def test_a_tenant_reads_its_own_log_and_an_operator_all(
    http: httpx2.Client, stranger: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    job_id = stranger.post("/v1/jobs", json={"input": "a"}).json()["id"]
    stranger.post(f"/v1/jobs/{job_id}/cancel")
    http.post("/v1/tenants", json={"name": f"t-{secrets.token_hex(4)}"})
    write(sessions, Action.KEY_ROTATE)
    own = stranger.get("/v1/audit").json()["data"]
    assert [each["object_id"] for each in own] == [job_id]
    assert own[0]["address"] == "127.0.0.1"
    assert [each["action"] for each in http.get("/v1/audit").json()["data"]] == [
        "key.rotate",
        "tenant.create",
        "job.cancel",
    ]


def test_a_tenant_sees_what_operators_did_to_it_but_not_from_where(
    http: httpx2.Client, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    tenant_id = new_tenant(sessions)
    key = new_key(sessions, Scope.READ, tenant_id=tenant_id)
    http.post(f"/v1/tenants/{ids.tenant_id(tenant_id)}/queue/pause", json={"reason": "new driver"})
    with sessions.begin() as session:
        audit.act_as(session, SOMEONE)
        tenants.set_weight(session, tenant_id, 2.0)
    with server.client(api_key=key.secret) as theirs:
        weighed, paused = theirs.get("/v1/audit").json()["data"]
    assert (paused["action"], paused["details"], paused["address"]) == (
        "queue.pause",
        {"reason": "new driver"},
        None,
    )
    assert paused["actor"]["name"] == "tests"
    assert weighed["actor"] == {"kind": "os_user", "id": None, "name": "", "via": "command_line"}
    assert http.get("/v1/audit").json()["data"][0]["actor"]["id"] == "ops"


def test_the_list_is_paged_and_filtered(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    write(sessions, Action.KEY_CREATE, Action.KEY_ROTATE, Action.KEY_REVOKE, Action.KEY_ROTATE)
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        found = http.get("/v1/audit", params={"limit": "3"} | after).json()
        seen += [each["action"] for each in found["data"]]
        if not found["has_more"]:
            break
        after = {"after": found["last_id"]}
    assert seen == ["key.rotate", "key.revoke", "key.rotate", "key.create"]
    rotated = http.get("/v1/audit", params={"action": "key.rotate"}).json()["data"]
    assert [each["action"] for each in rotated] == ["key.rotate"] * 2
    assert http.get("/v1/audit", params={"object_id": "lb_1"}).json()["data"] == []
    wrong = http.get("/v1/audit", params={"action": "key.steal"})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "action")
    wrong = http.get("/v1/audit", params={"object_id": "a\0b"})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "object_id")
    wrong = http.get("/v1/audit", params={"after": f"audit_{'0' * 32}"})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "after")


def test_a_later_release_s_action_is_listed(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.execute(
            text(
                "INSERT INTO audit_log (id, action, actor_kind, actor_id, actor_name, via)"
                " VALUES (gen_random_uuid(), 'moon.land', 'oracle', 'o', '', 'dream')"
            )
        )
    assert http.get("/v1/audit").json()["data"][0]["action"] == "moon.land"


def test_entries_past_their_retention_are_pruned_a_bounded_number_at_a_time(
    sessions: sessionmaker[Session],
) -> None:
    write(sessions, *[Action.KEY_CREATE] * 3)
    with sessions.begin() as session:
        now = database_now(session)
        assert audit.prune(session, before=now - timedelta(days=1)) == 0
        assert audit.prune(session, before=now + timedelta(days=1), limit=2) == 2
    JobMaintenance(sessions).prune(JobSettings(audit_retention_days=1e-9))
    assert entries(sessions) == []


def test_sign_ins_of_the_console_are_logged_and_failed_ones_too(
    server: ApiProcess, http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    key = new_key(sessions, Scope.READ, Scope.SUBMIT)
    with browsing(server, key.secret) as visitor:
        assert visitor.post("/console/sign-out").status_code == 303
    guessed = f"{key.secret[:-4]}AAAA"  # of its public part, which is no secret
    submitting = new_key(sessions, Scope.SUBMIT)
    with browsing(server, None) as nobody:
        assert nobody.sign_in(submitting.secret).status_code == 403
        assert nobody.sign_in(guessed).status_code == 401
        assert nobody.sign_in("hunter2").status_code == 401
        path = http.post("/console/codes").json()["path"]
        code = path.partition("code=")[2]
        assert nobody.sign_in("", code=code).status_code == 303
    public = key.secret[:19]
    seen = [(each.action, each.object_id, each.actor_kind, each.actor_id) for each in entries(sessions)]
    tests = API_KEY[:19]
    assert seen == [
        ("console.sign_in", None, "key", public),
        ("console.sign_out", None, "key", public),
        ("console.sign_in_failed", submitting.secret[:19], "unknown", ""),
        ("console.sign_in_failed", None, "unknown", ""),
        ("console.sign_in_failed", None, "unknown", ""),
        ("sign_in_code.create", None, "key", tests),
        ("console.sign_in", None, "key", tests),
    ]
    assert "hunter2" not in str([vars(each) for each in entries(sessions)])
    assert [each.tenant_id for each in entries(sessions)][2:5] == [DEFAULT_TENANT, None, None]


def test_changes_made_in_the_console_name_the_key_of_the_session(
    visitor: Browser, sessions: sessionmaker[Session], http: httpx2.Client
) -> None:
    job_id = http.post("/v1/jobs", json={"input": "a"}).json()["id"]
    assert visitor.post(f"/console/jobs/{job_id}/cancel").status_code == 303
    found = entries(sessions)[-1]
    assert (found.action, found.object_id, found.via) == ("job.cancel", job_id, "console")
    assert found.actor_name == "of a test"
    assert found.request_id is not None


def test_the_page_shows_the_log_to_its_tenant_and_all_to_operators(
    visitor: Browser, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    theirs = new_tenant(sessions, "others")
    with sessions.begin() as session:
        audit.act_as(session, SOMEONE)
        tenants.set_limits(session, theirs, {"max_jobs": 4321})
        audit.note(session, Action.KEY_REVOKE, "lb_1111111111111111", tenant_id=DEFAULT_TENANT)
    shown = words(visitor.page("/console/audit"))
    assert "lb_1111111111111111" in shown
    assert "4321" not in shown
    assert "console.sign_in" in shown
    assert "No change matches here." in words(visitor.page("/console/audit?action=engine.pause"))
    with browsing(server, new_key(sessions, Scope.READ, Scope.OPERATOR).secret) as operator:
        page = words(operator.page("/console/audit?action=tenant.set_limits"))
        assert "max jobs: 4321" in page
        assert "others-" in page
        assert operator.client.get("/console/audit?action=nonsense").status_code == 400


def test_a_long_list_is_cut_and_the_change_is_made(sessions: sessionmaker[Session]) -> None:
    tenant_id = new_tenant(sessions)
    names = [f"{'m' * 63}:{'a' * 60}{number:03}" for number in range(1000)]
    with sessions.begin() as session:
        audit.act_as(session, SOMEONE)
        tenants.set_adapters(session, tenant_id, names)
    (found,) = entries(sessions)
    listed = found.details["adapters"]
    assert isinstance(listed, list)
    assert (len(listed), listed[0], listed[-1]) == (41, names[0], "and 960 more")


def test_markup_in_names_and_filters_stays_text(server: ApiProcess, sessions: sessionmaker[Session]) -> None:
    key = new_key(sessions, Scope.READ, Scope.OPERATOR, name=PROBE)
    with browsing(server, key.secret) as operator:
        assert "<script>alert(1)</script>" in words(operator.page("/console/audit"))
        operator.page("/console/audit?object=%3Cb%20id%3Dprobe%3E")
        assert operator.client.get("/console/audit?object=a%00b").status_code < 500
        assert operator.client.get(f"/console/audit?object={'x' * 5000}").status_code < 500


def test_commands_that_change_something_name_the_user(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    database_settings: DatabaseSettings,
    server: ApiProcess,
) -> None:
    url = database_settings.url.get_secret_value()
    environment = {"LONGBATCH_DATABASE__URL": url, "LONGBATCH_API_KEY": API_KEY}

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(application(), arguments, env=environment)
        assert done.exit_code == 0, done.output
        return done.stdout

    name = f"t-{secrets.token_hex(4)}"
    run("tenants", "create", name, "--max-jobs", "7", "--weight", "2")
    key = run("keys", "create", "--tenant", name).strip()
    run("tenants", "pause", name, "--reason", "new driver")
    run("tenants", "resume", name)
    run("keys", "revoke", key[:19])
    run("keys", "revoke", key[:19])  # again: nothing changes
    found = entries(sessions)
    assert [each.action for each in found] == [
        "tenant.create",
        "tenant.set_limits",
        "tenant.set_weight",
        "key.create",
        "queue.pause",
        "queue.resume",
        "key.revoke",
    ]
    assert {(each.actor_kind, each.via, each.address) for each in found} == {
        ("os_user", "command_line", None)
    }
    assert all(each.actor_id for each in found)
    assert key[20:] not in str([vars(each) for each in found])
    listed = json.loads(run("audit", "--json", "--limit", "2", "--api-url", server.url))
    assert [each["action"] for each in listed["data"]] == ["key.revoke", "queue.resume"]
    assert re.search(r"key\.revoke +lb_", run("audit", "--action", "key.revoke", "--api-url", server.url))
    assert http.get("/v1/audit").json()["data"][0]["actor"]["kind"] == "os_user"
