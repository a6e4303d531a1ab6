"""Tenants, their limits and keys over HTTP, for operators."""

import secrets
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, error_of
from jobs import ids
from jobs.ids import uuid7
from jobs.models import Tenant
from jobs.models.tenant import ApiKey, TenantLimit
from jobs.tenants import keys
from support import API_KEY, eventually

MINE = f"lb_{keys.handle_of(API_KEY)}"


@pytest.fixture
def name(http: httpx2.Client) -> str:
    """A tenant made over HTTP."""
    made = http.post("/v1/tenants", json={"name": f"t-{secrets.token_hex(4)}", "weight": 2})
    assert made.status_code == 201
    found: str = made.json()["name"]
    return found


def key_of(http: httpx2.Client, tenant: str, **fields: object) -> dict[str, Any]:
    made = http.post("/v1/keys", json={"tenant": tenant, **fields})
    assert made.status_code == 201, made.text
    assert made.headers["cache-control"] == "no-store"
    found: dict[str, Any] = made.json()
    return found


def test_a_tenant_and_its_key_are_made_and_the_key_opens_the_api(
    http: httpx2.Client, server: ApiProcess, name: str
) -> None:
    http.patch(f"/v1/tenants/{name}", json={"limits": {"max_requests": 7}})
    made = key_of(http, name, name="nightly")
    assert (made["scopes"], made["state"], made["expires_at"]) == (["read", "submit"], "valid", None)
    with server.client(api_key=made["api_key"]) as theirs:
        assert theirs.get("/v1/jobs").headers["x-ratelimit-limit-requests"] == "7"
        assert theirs.get("/v1/keys").status_code == 403
    shown = http.get(f"/v1/keys/{made['id']}").json()
    assert shown["tenant"] == name
    assert "api_key" not in shown
    assert made["api_key"][20:] not in http.get("/v1/keys", params={"tenant": name}).text


def test_limits_are_changed_one_by_one_and_taken_back_by_null(http: httpx2.Client, name: str) -> None:
    path = f"/v1/tenants/{name}"
    before = http.get(path).json()
    assert (before["weight"], set(before["limits"].values())) == (2.0, {None})
    http.patch(path, json={"limits": {"max_jobs": 3, "max_requests": 9}, "weight": 0.5})
    changed = http.patch(path, json={"limits": {"max_jobs": None}}).json()
    assert changed == http.get(f"/v1/tenants/{changed['id']}").json()
    assert changed["weight"] == 0.5
    assert (changed["limits"]["max_jobs"], changed["limits"]["max_requests"]) == (None, 9)
    assert changed["effective_limits"] == before["effective_limits"] | {"max_requests": 9}
    assert changed["queue"]["state"] == "running"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": 1e-300}, "weight"),
        ({"weight": 1e300}, "weight"),
        ({"limits": {"max_jobs": -1}}, "limits.max_jobs"),
        ({"limits": {"max_jobs": 2**31}}, "limits.max_jobs"),
        ({"limits": {"max_requests": 0}}, "limits.max_requests"),
        ({"limits": {"max_enqueued_tokens": 2**63}}, "limits.max_enqueued_tokens"),
        ({"limits": {"max_stored_bytes": 1.5}}, "limits.max_stored_bytes"),
        ({"limits": None}, "limits"),
        ({"name": "other"}, "name"),
    ],
)
def test_what_no_limit_can_be_is_refused_and_changes_nothing(
    http: httpx2.Client, sessions: sessionmaker[Session], name: str, body: dict[str, object], param: str
) -> None:
    refused = http.patch(f"/v1/tenants/{name}", json=body)
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)
    with sessions() as session:
        row = session.scalars(select(Tenant).where(Tenant.name == name)).one()
        assert row.weight == 2.0
        assert session.get(TenantLimit, row.id) is None


def test_a_name_is_taken_once_and_follows_the_rules(http: httpx2.Client, name: str) -> None:
    taken = http.post("/v1/tenants", json={"name": name})
    assert (taken.status_code, error_of(taken)["code"]) == (409, "already_exists")
    for wrong in ("", "a b", "-a", "x" * 64, "a\x00b", "ä"):
        refused = http.post("/v1/tenants", json={"name": wrong})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "name"), wrong


def test_lists_go_page_by_page_newest_first(
    http: httpx2.Client, sessions: sessionmaker[Session], name: str
) -> None:
    made = [key_of(http, name)["id"] for _ in range(3)]
    listed: dict[str, str | int] = {"tenant": name, "limit": 2}
    first = http.get("/v1/keys", params=listed).json()
    assert ([each["id"] for each in first["data"]], first["has_more"]) == ([made[2], made[1]], True)
    rest = http.get("/v1/keys", params=listed | {"after": first["last_id"]}).json()
    assert ([each["id"] for each in rest["data"]], rest["has_more"]) == ([made[0]], False)
    newest = http.get("/v1/tenants", params={"limit": 1}).json()
    assert newest["data"][0]["name"] == name
    seen, after = 1, newest["last_id"]
    while (more := http.get("/v1/tenants", params={"limit": 100, "after": after}).json())["has_more"]:
        seen, after = seen + len(more["data"]), more["last_id"]
    with sessions() as session:
        assert seen + len(more["data"]) == session.scalar(select(func.count()).select_from(Tenant))
    for path, wrong in (
        ("/v1/keys", "lb_" + "f" * 16),
        ("/v1/keys", "a"),
        ("/v1/tenants", ids.tenant_id(uuid7())),
        ("/v1/tenants", "a\x00"),
    ):
        refused = http.get(path, params={"after": wrong})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "after")


def test_a_revoked_key_is_refused_and_none_revokes_itself(
    http: httpx2.Client, server: ApiProcess, name: str
) -> None:
    made = key_of(http, name, expires_in_seconds=600)
    assert made["expires_at"]
    revoked = http.post(f"/v1/keys/{made['id']}/revoke").json()
    assert revoked["state"] == "revoked"
    assert http.post(f"/v1/keys/{made['id']}/revoke").json() == revoked, "again changes nothing"
    with server.client(api_key=made["api_key"]) as theirs:
        eventually(lambda: theirs.get("/v1/jobs").status_code == 401)
    again = http.post(f"/v1/keys/{made['id']}/rotate")
    assert (again.status_code, error_of(again)["code"]) == (409, "key_not_usable")
    itself = http.post(f"/v1/keys/{MINE}/revoke")
    assert (itself.status_code, error_of(itself)["code"]) == (409, "conflict")
    assert http.get(f"/v1/keys/{MINE}").json()["state"] == "valid"


def test_a_rotated_key_has_a_successor_with_its_scopes(
    http: httpx2.Client, sessions: sessionmaker[Session], name: str
) -> None:
    old = key_of(http, name, scopes=["read", "read"])
    rotated = http.post(f"/v1/keys/{old['id']}/rotate", params={"overlap_seconds": 0})
    assert rotated.headers["cache-control"] == "no-store"
    new = rotated.json()
    assert (new["scopes"], new["tenant"]) == (["read"], name)
    assert new["api_key"].startswith(new["id"])
    assert http.get(f"/v1/keys/{old['id']}").json()["state"] == "expired"
    with sessions() as session:
        handles = select(ApiKey.handle).where(ApiKey.handle.in_([new["id"][3:], old["id"][3:]]))
        assert len(session.scalars(handles).all()) == 2


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"tenant": "nobody"}, 404, None),
        ({"tenant": "default", "scopes": []}, 400, "scopes"),
        ({"tenant": "default", "scopes": ["root"]}, 400, "scopes.0"),
        ({"tenant": "default", "expires_in_seconds": 0}, 400, "expires_in_seconds"),
        ({"tenant": "default", "expires_in_seconds": 10**12}, 400, "expires_in_seconds"),
        ({"tenant": "default", "name": "a\x1b[2J"}, 400, "name"),
        ({"scopes": ["read"]}, 400, "tenant"),
    ],
)
def test_what_no_key_can_be_is_refused(
    http: httpx2.Client, body: dict[str, object], status: int, param: str | None
) -> None:
    refused = http.post("/v1/keys", json=body)
    assert (refused.status_code, error_of(refused)["param"]) == (status, param), refused.text


def test_a_whole_key_names_nothing_in_a_path(http: httpx2.Client) -> None:
    for wrong in (API_KEY, API_KEY[3:19], "lb_" + "f" * 16, "a%00"):
        for verb, path in (("GET", f"/v1/keys/{wrong}"), ("POST", f"/v1/keys/{wrong}/revoke")):
            assert http.request(verb, path).status_code == 404
