"""Limits of one key, below those of its tenant: over HTTP, by command line, in all API processes."""

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from api_server import ApiProcess, error_of
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import tenants
from jobs.settings import DatabaseSettings
from jobs.tenants import keys
from jobs.tenants.keys import NewKey, Scope
from longbatch.cli.main import application
from support import eventually

LARGE = 3000
NONE = {"max_enqueued_tokens": None, "max_jobs": None, "max_requests": None}


@pytest.fixture(autouse=True)
def _minute() -> None:
    """Begin with 20 seconds of the minute left: requests are counted by the minute of the clock."""
    eventually(lambda: time.time() % 60 < 40)


@pytest.fixture
def tenant(sessions: sessionmaker[Session]) -> str:
    """A tenant with five requests a minute."""
    with sessions.begin() as session:
        row = tenants.create(session, f"t-{secrets.token_hex(4)}")
        tenants.set_limits(session, row.id, {"max_requests": 5})
        return row.name


@pytest.fixture(scope="module")
def beside(database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> Iterator[ApiProcess]:
    """Another API process on the same servers."""
    process = ApiProcess(database_settings, valkey.url)
    yield process
    process.stop()


def limited(sessions: sessionmaker[Session], tenant: str, max_requests: int | None) -> NewKey:
    with sessions.begin() as session:
        owner = tenants.find(session, tenant).id
        return keys.create(
            session, tenant_id=owner, name="", scopes=list(Scope), limits={"max_requests": max_requests}
        )


def answers(*processes: ApiProcess, key: NewKey, num: int) -> list[httpx2.Response]:
    """Send requests with the key to the processes in turn."""
    clients = [process.client(api_key=key.secret) for process in processes]
    try:
        return [clients[each % len(clients)].get("/v1/jobs") for each in range(num)]
    finally:
        for client in clients:
            client.close()


def test_a_key_is_held_to_its_limit_by_all_processes_and_its_tenant_keeps_the_rest(
    server: ApiProcess, beside: ApiProcess, sessions: sessionmaker[Session], tenant: str
) -> None:
    key, other = limited(sessions, tenant, 2), limited(sessions, tenant, None)
    found = answers(server, beside, key=key, num=6)
    assert [each.status_code for each in found] == [200] * 2 + [429] * 4
    assert found[0].headers["x-ratelimit-limit-requests"] == "2", "of the limit that leaves less"
    refused = found[2]
    assert (error_of(refused)["code"], error_of(refused)["type"]) == ("rate_limit_exceeded", "requests")
    assert "Rate limit of this API key reached: 2 requests a minute (its max_requests)." in refused.text
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    rest = answers(server, beside, key=other, num=4)
    assert [each.status_code for each in rest] == [200] * 3 + [429], "what was refused took nothing"
    assert "of this API key" not in rest[3].text


@pytest.mark.parametrize("max_requests", [5, 6, 2**31 - 1])
def test_a_key_never_exceeds_its_tenant(
    server: ApiProcess, sessions: sessionmaker[Session], tenant: str, max_requests: int
) -> None:
    found = answers(server, key=limited(sessions, tenant, max_requests), num=6)
    assert [each.status_code for each in found] == [200] * 5 + [429]
    assert "Rate limit reached: 5 requests a minute." in found[5].text


def test_two_keys_below_their_limits_share_the_tenant(
    server: ApiProcess, sessions: sessionmaker[Session], tenant: str
) -> None:
    first, second = (limited(sessions, tenant, 4) for _ in range(2))
    assert [each.status_code for each in answers(server, key=first, num=4)] == [200] * 4
    found = answers(server, key=second, num=2)
    assert [each.status_code for each in found] == [200, 429]
    assert "Rate limit reached: 5 requests a minute." in found[1].text
    assert found[0].headers["x-ratelimit-limit-requests"] == "5", "of the limit that leaves less"


def test_lines_that_can_never_fit_count_against_the_key_too(
    server: ApiProcess, sessions: sessionmaker[Session], tenant: str
) -> None:
    with sessions.begin() as session:
        tenants.set_limits(session, tenants.find(session, tenant).id, {"max_requests": None})
    lines = [json.dumps({"input": f"a{n}", "max_tokens": 131_072}) for n in range(900)]
    with server.client(api_key=limited(sessions, tenant, 100).secret) as client:
        report = client.post("/v1/jobs/bulk", content="\n".join(lines)).json()
        assert (report["accepted"], report["rejected"]) == (300, 600), (
            "the first part, until the rate is reached"
        )
        assert "of this API key" in report["errors"][0]["message"]
        assert client.get("/v1/jobs").status_code == 429
    (other,) = answers(server, key=limited(sessions, tenant, None), num=1)
    limit, left = (int(other.headers[f"x-ratelimit-{each}-requests"]) for each in ("limit", "remaining"))
    assert left < limit - 300, "the tenant's counts them"


def key_of(http: httpx2.Client, tenant: str, **fields: object) -> dict[str, Any]:
    made = http.post("/v1/keys", json={"tenant": tenant, **fields})
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def test_an_operator_sets_and_takes_back_a_limit_that_a_rotation_keeps(
    http: httpx2.Client, server: ApiProcess, tenant: str
) -> None:
    http.patch(f"/v1/tenants/{tenant}", json={"limits": {"max_requests": None}})
    made = key_of(http, tenant, limits={"max_requests": 3, "max_jobs": 9})
    assert made["limits"] == NONE | {"max_requests": 3, "max_jobs": 9}
    path = f"/v1/keys/{made['id']}"
    successor = http.post(f"{path}/rotate").json()
    assert successor["limits"] == made["limits"]

    def limit() -> str:
        with server.client(api_key=successor["api_key"]) as theirs:
            return str(theirs.get("/v1/jobs").headers["x-ratelimit-limit-requests"])

    def limits_after(change: object, *, of: str = path) -> object:
        return http.patch(of, json=change).json()["limits"]

    assert limit() == "3"
    changed = limits_after({"limits": {"max_requests": 4}}, of=f"/v1/keys/{successor['id']}")
    assert changed == NONE | {"max_requests": 4, "max_jobs": 9}
    eventually(lambda: limit() == "4")
    assert limits_after({}) == made["limits"], "what is left out stays"
    assert limits_after({"limits": {"max_requests": None}}) == NONE | {"max_jobs": 9}
    assert limits_after({"limits": {"max_jobs": None, "max_enqueued_tokens": 2**40}}) == NONE | {
        "max_enqueued_tokens": 2**40
    }
    assert http.get(path).json()["limits"] == NONE | {"max_enqueued_tokens": 2**40}
    assert key_of(http, tenant)["limits"] == NONE


@pytest.mark.parametrize(
    ("limits", "param"),
    [
        ({"max_requests": 0}, "limits.max_requests"),
        ({"max_requests": 2**31}, "limits.max_requests"),
        ({"max_requests": 1.5}, "limits.max_requests"),
        ({"max_jobs": -1}, "limits.max_jobs"),
        ({"max_jobs": 2**31}, "limits.max_jobs"),
        ({"max_enqueued_tokens": -1}, "limits.max_enqueued_tokens"),
        ({"max_enqueued_tokens": 2**63}, "limits.max_enqueued_tokens"),
        ({"max_stored_bytes": 1}, "limits.max_stored_bytes"),
        (None, "limits"),
    ],
)
def test_what_no_limit_can_be_is_refused_and_changes_nothing(
    http: httpx2.Client, tenant: str, limits: object, param: str
) -> None:
    made = key_of(http, tenant, limits={"max_requests": 3})
    path = f"/v1/keys/{made['id']}"
    for refused in (
        http.patch(path, json={"limits": limits}),
        http.post("/v1/keys", json={"tenant": tenant, "limits": limits}),
    ):
        assert (refused.status_code, error_of(refused)["param"]) == (400, param)
    assert http.get(path).json()["limits"] == NONE | {"max_requests": 3}
    assert len(http.get("/v1/keys", params={"tenant": tenant}).json()["data"]) == 1


def test_only_operators_limit_keys(server: ApiProcess, http: httpx2.Client, tenant: str) -> None:
    made = key_of(http, tenant, limits={"max_requests": 3})
    with server.client(api_key=made["api_key"]) as theirs:
        refused = theirs.patch(f"/v1/keys/{made['id']}", json={"limits": {"max_requests": None}})
    assert refused.status_code == 403
    assert http.get(f"/v1/keys/{made['id']}").json()["limits"] == NONE | {"max_requests": 3}


def test_the_command_line_limits_a_key_and_takes_the_limit_back(
    database_settings: DatabaseSettings, tenant: str
) -> None:
    url = database_settings.url.get_secret_value()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(application(), arguments, env={"LONGBATCH_DATABASE__URL": url})

    def limits(place: int = 0) -> dict[str, object]:
        found = json.loads(run("keys", "list", "--tenant", tenant, "--json").stdout)[place]
        return {name: found[name] for name in NONE}

    def limit() -> object:
        return limits()["max_requests"]

    secret = run("keys", "create", "--tenant", tenant, "--max-requests", str(LARGE)).stdout.strip()
    assert limit() == LARGE
    assert "jobs" not in run("keys", "list", "--tenant", tenant).stdout, "quotas that no key has"
    key = f"lb_{keys.handle_of(secret)}"
    assert run("keys", "set", key).exit_code == 0
    assert limit() == LARGE
    assert run("keys", "set", key, "--max-requests", "2").exit_code == 0
    assert limit() == 2
    assert run("keys", "set", key, "--max-requests", "-1").exit_code == 0
    assert limit() is None
    for wrong in ("0", "-2", "x"):
        assert run("keys", "set", key, "--max-requests", wrong).exit_code == 2
    assert run("keys", "set", key, "--max-jobs", "0", "--max-enqueued-tokens", str(2**40)).exit_code == 0
    assert limits() == {"max_enqueued_tokens": 2**40, "max_jobs": 0, "max_requests": None}
    assert "jobs" in run("keys", "list", "--tenant", tenant).stdout
    assert run("keys", "set", key, "--max-enqueued-tokens", "-1").exit_code == 0
    assert limits() == {"max_enqueued_tokens": None, "max_jobs": 0, "max_requests": None}
    run("keys", "revoke", key)
    run("keys", "create", "--tenant", tenant, "--max-jobs", "5", "--max-enqueued-tokens", "6")
    assert limits(1) == {"max_enqueued_tokens": 6, "max_jobs": 5, "max_requests": None}
    assert run("keys", "create", "--tenant", tenant, "--max-requests", "0").exit_code == 2
