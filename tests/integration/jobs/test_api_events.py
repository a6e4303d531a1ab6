"""A thousand readers of events on one API process."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx2
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess
from jobs import ids
from jobs.states import FinishReason
from jobs.transitions import Lease
from support import API_KEY, eventually, output_of

NUM_READERS = 1000


def test_a_thousand_readers_share_the_connections_and_all_see_the_end(
    server: ApiProcess, http: httpx2.Client, sessions: sessionmaker[Session], running: Lease
) -> None:
    with ThreadPoolExecutor(1) as pool:
        ends = pool.submit(asyncio.run, many_readers(server, running))
        eventually(
            lambda: f"longbatch_http_open_requests {NUM_READERS + 1}.0" in http.get("/metrics").text,
        )
        busiest = max(num_connections(sessions) for _ in range(20))
        with sessions.begin() as session:
            assert ending.complete(session, running, output_of("done"), FinishReason.STOP)
        assert ends.result(timeout=60) == [b'"state":"completed"'] * NUM_READERS
    assert busiest <= 12  # the API's pool is 10


def num_connections(sessions: sessionmaker[Session]) -> int:
    query = text("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'longbatch-api%'")
    with sessions() as session:
        return session.execute(query).scalar_one()


async def many_readers(server: ApiProcess, lease: Lease) -> list[bytes]:
    """How the job's last event began for each reader. Bare sockets: clients' pools are quadratic."""
    port = int(server.url.rsplit(":", 1)[1])
    path = f"/v1/jobs/{ids.job_id(lease.job_id)}/events"
    key = f"Authorization: Bearer {API_KEY}"
    request = f"GET {path} HTTP/1.1\r\nHost: a\r\n{key}\r\nConnection: close\r\n\r\n"

    async def read() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode())
        answer = await reader.read()
        writer.close()
        last = answer.rpartition(b"event: job")[2]
        return last[last.index(b'"state"') :].split(b",")[0]

    return list(await asyncio.gather(*(read() for _ in range(NUM_READERS))))
