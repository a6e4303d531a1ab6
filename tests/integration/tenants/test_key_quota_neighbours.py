"""What submissions that wait for the quota of one key cost all others: nothing."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import httpx2
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, Serve
from jobs import tenants
from jobs.tenants import key_quotas, keys
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.keys import Scope
from support import eventually

NUM_TEAMS = 2
NUM_OF_EACH = 8


@dataclass(frozen=True)
class Team:
    """A tenant with a key that has a quota, and another one.

    Attributes:
        limited: a client with the first.
        quota: of it.
        other: a client with the second.
    """

    limited: httpx2.Client
    quota: KeyQuota
    other: httpx2.Client


@pytest.fixture(scope="module")
def patient(serve: Serve) -> Iterator[ApiProcess]:
    """A service that gives up nothing that waits during a test."""
    names = ("POOL_TIMEOUT_SECONDS", "LOCK_TIMEOUT_SECONDS", "STATEMENT_TIMEOUT_SECONDS")
    with serve(**{f"LONGBATCH_DATABASE__{name}": "80" for name in names}) as process:
        yield process


@pytest.fixture
def teams(patient: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[list[Team]]:
    with ExitStack() as opened:
        yield [made(patient, sessions, opened) for _ in range(NUM_TEAMS)]


def made(server: ApiProcess, sessions: sessionmaker[Session], opened: ExitStack) -> Team:
    with sessions.begin() as session:
        owner = tenants.create(session, f"t-{secrets.token_hex(4)}").id
        limits = {"max_jobs": 100}
        limited = keys.create(session, tenant_id=owner, name="", scopes=list(Scope), limits=limits)
        other = keys.create(session, tenant_id=owner, name="", scopes=list(Scope))
    quota = key_quotas.quota_of(limited.row)
    assert quota is not None
    one, two = (opened.enter_context(server.client(api_key=each.secret)) for each in (limited, other))
    return Team(one, quota, two)


def post(http: httpx2.Client, *, alone: bool = False) -> int:
    """Submit a job whose prompt no other has: of one that is being stored, both would wait for the first."""
    name = secrets.token_hex(8)
    headers = {"Idempotency-Key": name} if alone else {}
    return http.post("/v1/jobs", json={"input": name}, headers=headers).status_code


@pytest.mark.parametrize("alone", [False, True], ids=["together", "alone"])
def test_what_waits_for_the_quota_of_a_key_keeps_no_others_waiting(
    patient: ApiProcess, teams: list[Team], sessions: sessionmaker[Session], *, alone: bool
) -> None:
    with patient.client() as stranger, ThreadPoolExecutor(NUM_TEAMS * NUM_OF_EACH) as pool:
        with sessions.begin() as session:
            session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            for team in teams:
                key_quotas.hold(session, team.quota)  # as the plan of a large tree does
            waiting = [
                pool.submit(post, team.limited, alone=alone) for team in teams for _ in range(NUM_OF_EACH)
            ]
            shown = f"longbatch_http_open_requests {len(waiting) + 1}.0"
            eventually(lambda: shown in stranger.get("/metrics").text)
            others = [stranger, *(team.other for team in teams)]
            assert [post(each, alone=alone) for each in others] == [202] * 3
            assert [each.get("/v1/jobs").status_code for each in others] == [200] * 3
            assert not any(each.done() for each in waiting)
        assert {each.result() for each in waiting} == {202}
