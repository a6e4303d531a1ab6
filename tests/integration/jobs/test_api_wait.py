import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx2
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import SOFT_FILES, ApiProcess
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell, ids, live_output
from jobs.states import FinishReason
from jobs.transitions import Lease
from support import API_KEY, eventually, output_of

# Seconds: an answer that comes by then did not wait to the end of 60.
WELL_BEFORE_60 = 40


def complete(sessions: sessionmaker[Session], lease: Lease) -> None:
    with sessions.begin() as session:
        assert ending.complete(session, lease, output_of("done"), FinishReason.STOP)


def num_busy_connections(sessions: sessionmaker[Session]) -> int:
    """How many of the service's connections have a query or a transaction open."""
    statement = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longbatch-api' AND state <> 'idle'"
    )
    with sessions() as session:
        return session.scalar(text(statement)) or 0


def test_a_wait_ends_when_the_job_does(
    http: httpx2.Client, sessions: sessionmaker[Session], running: Lease
) -> None:
    path = f"/v1/jobs/{ids.job_id(running.job_id)}?wait=60"
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(http.get, path, timeout=WELL_BEFORE_60)
        complete(sessions, running)
        assert answer.result().json()["state"] == "completed"


def test_a_cancel_is_told_to_the_waits_of_all_processes(http: httpx2.Client, valkey: EmbeddedValkey) -> None:
    job_id = http.post("/v1/jobs", json={"input": "a"}).json()["id"]
    http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    with closing(doorbell.connect(valkey.url, socket_timeout=5)) as broker:

        def told() -> bool:
            found: Any = broker.xrange(live_output.ENDED_KEY)
            return job_id in {ids.job_id(live_output.ended_job(fields)) for _, fields in found}

        eventually(told)


def test_a_wait_ends_when_the_time_is_up(http: httpx2.Client, running: Lease) -> None:
    started_at = time.monotonic()
    answer = http.get(f"/v1/jobs/{ids.job_id(running.job_id)}?wait=0.5")
    assert (answer.status_code, answer.json()["state"]) == (200, "running")
    assert time.monotonic() - started_at >= 0.5


def test_a_wait_for_an_ended_job_ends_at_once(
    http: httpx2.Client, sessions: sessionmaker[Session], running: Lease
) -> None:
    complete(sessions, running)
    path = f"/v1/jobs/{ids.job_id(running.job_id)}?wait=60"
    assert http.get(path, timeout=WELL_BEFORE_60).json()["state"] == "completed"


def test_a_wait_says_304_when_nothing_changed(http: httpx2.Client, running: Lease) -> None:
    path = f"/v1/jobs/{ids.job_id(running.job_id)}"
    tag = http.get(path).headers["etag"]
    assert http.get(f"{path}?wait=0.2", headers={"If-None-Match": tag}).status_code == 304


def test_1200_waits_share_one_connection_and_hinder_nobody(
    server: ApiProcess, http: httpx2.Client, sessions: sessionmaker[Session], running: Lease
) -> None:
    num_waits = 1200  # more than the soft limit of open files that the service started with
    assert num_waits > SOFT_FILES
    wait_for_open_requests(http, 1)  # those of other tests have ended
    with ThreadPoolExecutor(1) as pool:
        states = pool.submit(asyncio.run, many_waits(server, running, num_waits))
        busiest = 0

        def look() -> None:
            nonlocal busiest
            busiest = max(busiest, num_busy_connections(sessions))
            assert not states.done(), states.result()

        wait_for_open_requests(http, num_waits + 1, look=look)
        for _ in range(50):
            busiest = max(busiest, num_busy_connections(sessions))
        assert busiest <= 2  # one of them may be the scrape's
        with server.client() as newcomer:
            sent = newcomer.post("/v1/jobs", json={"input": "a"})
            assert sent.status_code == 202
            ended = newcomer.post(f"/v1/jobs/{sent.json()['id']}/cancel")
            assert ended.json()["state"] == "cancelled", "others go on while all of them wait"
            assert not states.done()
        complete(sessions, running)
        assert states.result() == {"completed"}


def wait_for_open_requests(http: httpx2.Client, num: int, *, look: Callable[[], None] = lambda: None) -> None:
    """Wait until the service has so many, of which the scrape is one; call `look` before each scrape."""
    seen: list[str] = []

    def has_so_many() -> bool:
        look()
        lines = http.get("/metrics").text.splitlines()
        seen.extend(line for line in lines if line.startswith("longbatch_http_open_requests "))
        return seen[-1] == f"longbatch_http_open_requests {num}.0"

    try:
        eventually(has_so_many)
    except AssertionError as error:
        raise AssertionError(f"{num} requests are not open; seen: {seen[-20:]}") from error


async def many_waits(server: ApiProcess, lease: Lease, num_waits: int) -> set[str]:
    """The states that so many callers at once have waited for. Bare sockets: clients' pools are quadratic."""
    port = int(server.url.rsplit(":", 1)[1])
    request = (
        f"GET /v1/jobs/{ids.job_id(lease.job_id)}?wait=60 HTTP/1.1\r\nHost: a\r\n"
        f"Authorization: Bearer {API_KEY}\r\nConnection: close\r\n\r\n"
    )

    async def wait() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode())
        _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        state: str = json.loads(body)["state"]
        return state

    return set(await asyncio.gather(*(wait() for _ in range(num_waits))))
