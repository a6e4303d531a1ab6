"""Streams of events: so many of each tenant, and no longer than their keys are good."""

import json
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from threading import Barrier

import httpx2
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, Serve, error_of
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell, ids, live_output, tenants
from jobs.live_output import Delta
from jobs.models import DEFAULT_TENANT, Job
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from support import API_KEY, PATIENCE, eventually, submit_one

MAX_STREAMS = 2


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[ApiProcess]:
    """The service with room for two streams of a tenant, whose keys it looks at all the time."""
    variables = {"LONGBATCH_API__MAX_STREAMS": str(MAX_STREAMS), "LONGBATCH_API__RECHECK_SECONDS": "0.05"}
    with serve(**variables) as process:
        yield process


def events_of(lease: Lease) -> str:
    return f"/v1/jobs/{ids.job_id(lease.job_id)}/events?text=true"


def test_a_tenant_s_streams_are_limited_and_its_long_polls_are_not(
    server: ApiProcess, http: httpx2.Client, sessions: sessionmaker[Session], running: Lease
) -> None:
    path = events_of(running)
    wait_for_places(http)
    with sessions.begin() as session:
        other = tenants.create(session, f"t-{secrets.token_hex(4)}")
        stranger = keys.create(session, tenant_id=other.id, name="", scopes=list(Scope))
        foreign = submit_one(session, tenant_id=other.id)
    with ExitStack() as streams:
        for _ in range(MAX_STREAMS):
            assert streams.enter_context(http.stream("GET", path)).status_code == 200
        refused = http.get(path)
        assert refused.status_code == 429
        assert error_of(refused)["code"] == "stream_limit_exceeded"
        assert str(MAX_STREAMS) in error_of(refused)["message"]
        asked = http.post("/generate_stream", json={"prompt": "a", "max_tokens": 4})
        assert error_of(asked)["code"] == "stream_limit_exceeded"
        with sessions() as session:
            assert session.scalar(select(func.count()).select_from(Job)) == 2, "nothing was submitted"
        assert http.get(path.replace("/events", ""), params={"wait": 0.01}).status_code == 200
        with (
            server.client(api_key=stranger.secret) as another,
            another.stream("GET", f"/v1/jobs/{ids.job_id(foreign.id)}/events") as answer,
        ):
            assert answer.status_code == 200
    eventually(lambda: _opens(http, path))
    for _ in range(2 * MAX_STREAMS):  # a request that is refused takes no place
        assert http.get(f"/v1/jobs/{ids.job_id(ids.uuid7())}/events").status_code == 404
    assert _opens(http, path)


@pytest.mark.parametrize("loss", ["revoked", "expired", "scope"])
def test_a_stream_sends_nothing_more_once_its_key_is_invalid(
    server: ApiProcess,
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    valkey: EmbeddedValkey,
    running: Lease,
    background: Callable[..., Future[list[str]]],
    loss: str,
) -> None:
    with sessions.begin() as session:
        made = keys.create(session, tenant_id=DEFAULT_TENANT, name="", scopes=[Scope.READ, Scope.SUBMIT])
    wait_for_places(http)
    opened = Barrier(3)
    ends, goes_on = (background(read, server, key, running, opened) for key in (made.secret, API_KEY))
    opened.wait(PATIENCE)
    with sessions.begin() as session:
        row = session.merge(made.row)
        if loss == "revoked":
            keys.revoke(session, row)
        elif loss == "expired":
            row.expires_at = row.created_at
        else:
            row.scopes = [Scope.SUBMIT]
    with closing(doorbell.connect(valkey.url, socket_timeout=5)) as broker:

        def say(number: int, *, last: str = "") -> None:
            fields = live_output.encode(Delta(number, last or "x", number + 1))
            broker.xadd(live_output.stream_key(running.job_id), fields)  # type: ignore[arg-type]  # texts

        number = 0
        while not ends.done():
            say(number)
            number += 1
            assert number < 10_000
            wait([ends], timeout=0.05)  # readers keep up, also on a loaded machine
        *_, last = ends.result()
        name, data = last.splitlines()
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["code"] == "invalid_api_key"
        say(number, last="END")
    assert "END" in goes_on.result(timeout=PATIENCE)[-1], "the other key's stream goes on"


def wait_for_places(http: httpx2.Client) -> None:
    """The service has seen that the streams of the test before are closed."""
    eventually(lambda: "longbatch_http_open_requests 1.0" in http.get("/metrics").text)


def read(server: ApiProcess, key: str, lease: Lease, opened: Barrier) -> list[str]:
    """The events until the stream ends or tells the end."""
    told = ""
    with server.client(api_key=key) as http, http.stream("GET", events_of(lease)) as answer:
        assert answer.status_code == 200
        opened.wait(PATIENCE)
        for each in answer.iter_text():
            told += each
            if "END" in told:
                break
    return [event for event in told.split("\n\n") if event]


def _opens(http: httpx2.Client, path: str) -> bool:
    with http.stream("GET", path) as answer:
        return answer.status_code == 200
