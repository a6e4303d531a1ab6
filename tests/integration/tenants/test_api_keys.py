import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta

import httpx2
import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, error_of
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import tenants
from jobs.database import database_now
from jobs.errors import NotFoundError
from jobs.models import DEFAULT_TENANT
from jobs.models.tenant import ApiKey
from jobs.settings import DatabaseSettings
from jobs.tenants import keys
from jobs.tenants.keys import NewKey, Scope
from support import API_KEY, PATIENCE, eventually, num_waiting_for_locks

BOUND_SECONDS = 5  # how long a revoked key works, as documented
Make = Callable[..., NewKey]


@pytest.fixture
def make(sessions: sessionmaker[Session]) -> Make:
    def made(*scopes: Scope, **fields: object) -> NewKey:
        with sessions.begin() as session:
            return keys.create(
                session,
                tenant_id=DEFAULT_TENANT,
                name="",
                scopes=scopes or list(Scope),
                **fields,  # type: ignore[arg-type]  # named by the caller
            )

    return made


@contextmanager
def caller(server: ApiProcess, secret: str | None) -> Iterator[httpx2.Client]:
    with server.client(api_key=secret) as client:
        yield client


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer lb_wrong",
        f"Basic {API_KEY}",
        API_KEY,
        f"Bearer {API_KEY}x",
        f"Bearer {API_KEY[:-1]}u",
        f"Bearer lb_ffffffffffffffff_{'t' * 43}",
        "Bearer " + "x" * 8000,
        "Bearer \xff\xfe",
    ],
)
def test_whoever_has_no_key_is_401_everywhere(server: ApiProcess, header: str | None) -> None:
    headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
    with server.client(api_key=None) as http:
        for method, path in (
            ("GET", "/v1/jobs"),
            ("POST", "/v1/jobs"),
            ("POST", "/v1/jobs/bulk"),
            ("GET", "/v1/version"),
            ("GET", "/nowhere"),
        ):
            refused = http.request(method, path, headers=headers, content=b"x" * 100_000)
            assert (refused.status_code, error_of(refused)["code"]) == (401, "invalid_api_key")
            if header is not None:
                assert "Incorrect API key provided: " in (error_of(refused)["message"] or ""), (
                    "LiteLLM's test"
                )
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.headers["x-should-retry"] == "false"
            assert refused.headers["x-request-id"]
            assert API_KEY not in refused.text


def test_what_is_open_needs_no_key(server: ApiProcess) -> None:
    with server.client(api_key=None) as http:
        for path in ("/health/live", "/docs", "/openapi.json", "/metrics"):
            assert http.get(path).status_code == 200, path
        assert http.get("/health/ready").json()["components"]["database"]["ready"] is True


def test_a_large_body_without_a_key_gets_its_answer(server: ApiProcess) -> None:
    with server.client(api_key=None) as http:
        refused = http.post("/v1/jobs/bulk", content=b'{"input": "a"}\n' * 2_000_000)
        assert refused.status_code == 401


@pytest.mark.parametrize(
    ("scope", "reads", "submits", "operates"),
    [
        (Scope.READ, 200, 403, 403),
        (Scope.SUBMIT, 403, 202, 403),
        (Scope.ADMIN, 403, 403, 403),
        (Scope.ENGINE, 403, 403, 403),
        (Scope.OPERATOR, 403, 403, 200),
    ],
)
def test_a_key_does_what_its_scopes_say(
    server: ApiProcess, make: Make, *, scope: Scope, reads: int, submits: int, operates: int
) -> None:
    with caller(server, make(scope).secret) as http:
        answers = (
            http.get("/v1/jobs"),
            http.post("/v1/jobs", json={"input": "a"}),
            http.get("/v1/engines"),
        )
        assert [answer.status_code for answer in answers] == [reads, submits, operates]
        for answer in answers:
            if answer.status_code == 403:
                assert error_of(answer)["code"] == "insufficient_scope"


def test_a_key_ends_when_it_expires(server: ApiProcess, make: Make, sessions: sessionmaker[Session]) -> None:
    with sessions() as session:
        expires_at = database_now(session) + timedelta(seconds=1.5)
    with caller(server, make(expires_at=expires_at).secret) as http:
        refused = eventually(lambda: (a := http.get("/v1/jobs")).status_code == 401 and a)
        assert error_of(refused)["message"] == "Incorrect API key provided: it has expired."
    with sessions() as session:
        assert database_now(session) >= expires_at, "it was let in until then"


def test_a_key_is_let_in_until_it_expires_however_long_its_look_up_waits(
    server: ApiProcess,
    make: Make,
    sessions: sessionmaker[Session],
    background: Callable[..., Future[httpx2.Response]],
) -> None:
    def ask(secret: str) -> httpx2.Response:
        with caller(server, secret) as http:
            return http.get("/v1/jobs")

    others = [make().secret, make().secret]
    with sessions() as session:
        asked_at = database_now(session)
    expires_at = asked_at + timedelta(seconds=3)
    secret = make(expires_at=expires_at).secret

    def is_half_over() -> bool:
        with sessions() as session:
            return database_now(session) > asked_at + timedelta(seconds=2)

    with sessions.begin() as session:
        session.execute(text("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE"))
        for number, other in enumerate(others, 1):  # all the look-ups that run at once
            background(ask, other)
            eventually(lambda number=number: num_waiting_for_locks(sessions) == number)
        answer = background(ask, secret)
        eventually(is_half_over)
    refused = answer.result(timeout=PATIENCE).status_code == 401
    with sessions() as session:
        assert refused <= (database_now(session) >= expires_at)


def test_of_two_keys_that_revoke_each_other_one_is_left(
    server: ApiProcess,
    make: Make,
    sessions: sessionmaker[Session],
    background: Callable[..., Future[int]],
) -> None:
    one, other = make(), make()

    def revoke(mine: str, named: str) -> int:
        with caller(server, mine) as http:
            return http.post(f"/v1/keys/{named}/revoke").status_code

    with sessions.begin() as session:
        both = select(ApiKey).where(ApiKey.id.in_([one.row.id, other.row.id]))
        session.scalars(both.with_for_update()).all()
        answers = [
            background(revoke, one.secret, keys.public_id(other.row)),
            background(revoke, other.secret, keys.public_id(one.row)),
        ]
        eventually(lambda: num_waiting_for_locks(sessions) == len(answers))
    assert sorted(each.result(timeout=PATIENCE) for each in answers) == [200, 401]
    with sessions() as session:
        left = keys.usable_scopes(session, key_ids=[one.row.id, other.row.id])
        assert len(left) == 1


def test_a_revoked_key_ends_within_the_documented_bound(
    server: ApiProcess, make: Make, sessions: sessionmaker[Session]
) -> None:
    made = make()
    with caller(server, made.secret) as http:
        assert http.get("/v1/jobs").status_code == 200
        with sessions.begin() as session:
            keys.revoke(session, made.row)
        revoked_at = sent_at = time.monotonic()
        while http.get("/v1/jobs").status_code == 200:
            assert sent_at - revoked_at < BOUND_SECONDS, "a request sent after the bound was let in"
            sent_at = time.monotonic()


def test_a_rotated_key_overlaps_with_its_successor(
    server: ApiProcess, make: Make, sessions: sessionmaker[Session]
) -> None:
    old = make(Scope.READ)
    with sessions.begin() as session:
        new = keys.rotate(session, keys.named(session, f"lb_{old.row.handle}"), overlap=timedelta(hours=1))
    assert new.row.scopes == [Scope.READ]
    for secret in (old.secret, new.secret):
        with caller(server, secret) as http:
            assert http.get("/v1/jobs").status_code == 200
    with sessions.begin() as session:
        newest = keys.rotate(session, keys.named(session, new.secret), overlap=timedelta(0))
        row = session.get_one(ApiKey, new.row.id)
        assert not keys.is_usable(row, database_now(session))
    with caller(server, newest.secret) as http:
        assert http.get("/v1/jobs").status_code == 200


def test_only_the_hash_is_stored_and_use_is_noted_by_the_minute(
    server: ApiProcess, make: Make, sessions: sessionmaker[Session]
) -> None:
    made = make()
    assert made.secret not in repr(made)
    with caller(server, made.secret) as http:
        http.get("/v1/jobs")

    def noted() -> bool:
        with sessions() as session:
            return session.get_one(ApiKey, made.row.id).last_used_at is not None

    eventually(noted)  # after the answer
    with sessions() as session:
        row = session.scalars(select(ApiKey).where(ApiKey.id == made.row.id)).one()
        stored = [str(value) for value in vars(row).values()]
        assert not any(made.secret in value or made.secret[20:] in value for value in stored)
        assert row.last_used_at is not None
        assert (row.last_used_at.second, row.last_used_at.microsecond) == (0, 0)


def test_the_log_never_holds_a_key(server: ApiProcess, make: Make) -> None:
    made = make()
    with caller(server, made.secret) as http:
        http.get("/v1/jobs")
        http.post("/v1/jobs", json={"input": 1})
    assert made.secret not in "".join(server.lines)


def test_metrics_are_for_this_host_or_for_admins(
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    make: Make,
) -> None:
    admin, reader = make(Scope.ADMIN), make(Scope.READ)
    everywhere = ApiProcess(database_settings, valkey.url, LONGBATCH_API__HOST="0.0.0.0")  # noqa: S104  # with keys
    try:
        port = everywhere.url.rpartition(":")[2]
        own_address = next(iter(_addresses()), None)
        if own_address is None:
            pytest.skip("this host has no address but loopback")
        with httpx2.Client(
            base_url=f"http://{own_address}:{port}", timeout=PATIENCE, trust_env=False
        ) as http:
            answers = [
                http.get("/metrics", headers={"Authorization": f"Bearer {secret}"})
                for secret in ("lb_none", reader.secret, admin.secret)
            ]
            assert [answer.status_code for answer in answers] == [401, 403, 200]
    finally:
        everywhere.stop()


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), ("localhost:8080", 200), ("[::1]:8080", 200), ("rebound.example", 401), ("[", 401)],
)
def test_metrics_without_a_key_need_a_loopback_host(server: ApiProcess, host: str, status: int) -> None:
    with server.client(api_key=None) as http:
        assert http.get("/metrics", headers={"Host": host}).status_code == status


def test_an_unknown_tenant_s_name_is_no_key(sessions: sessionmaker[Session]) -> None:
    with sessions() as session:
        for wrong in ("", "lb_", "lb_0", "default", API_KEY[:-1] + " x"):
            with pytest.raises(NotFoundError, match="no such key"):
                keys.named(session, wrong)
        assert tenants.named(session, "default").id == DEFAULT_TENANT


def _addresses() -> list[str]:
    """Of this host, loopback left out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the address
        except OSError:
            return []
        found: str = probe.getsockname()[0]
    return [] if found.startswith("127.") else [found]
