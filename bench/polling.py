"""`python -m bench.polling`: status polls against a bare single-row GET, and a thousand waiting callers.

Postgres, Redis, the API process, the peer and the clients run here, each in its own process. The peer is a
FastAPI application with one route that reads one row by its id through psycopg and its pool, and returns it.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from bench import figures
from bench.figures import Figure, Servers
from cli.stack.servers.engine_size import EngineSize
from jobs import ids, lifecycle, submission
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT
from jobs.prompts.store import CountedPrompt, NewText
from jobs.scheduling import tick
from jobs.scheduling.sizing import ClaimPolicy
from jobs.settings import JobSettings
from jobs.states import FinishReason
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from worker.inference.outcome import Finished, RunEnd, write_outcome

_KEY: Final = "lb_0123456789abcdef_" + "b" * 43  # opens nothing outside this run
_NUM_CLIENTS: Final = 16
_NUM_WAITING: Final = 1000
_NUM_ENDS: Final = 50  # jobs they wait for, ending one after another
_SLOTS: Final = 64
_COMPLETE: Final = RunEnd(Finished(FinishReason.STOP), engine_is_done=True)
_PEER: Final = """
import sys, socket, fastapi, psycopg_pool, uvicorn
from contextlib import asynccontextmanager
from psycopg.rows import dict_row
pool = psycopg_pool.AsyncConnectionPool(sys.argv[1], min_size=4, max_size=10, open=False)
@asynccontextmanager
async def running(_):
    async with pool:
        yield
app = fastapi.FastAPI(lifespan=running)
@app.get("/v1/jobs/{job_id}")
async def look(job_id: str):
    async with pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute("SELECT id, state, task, model, max_tokens, prompt_tokens, completion_tokens,"
            " finish_reason, error, custom_id, metadata, created_at, started_at, first_token_at, finalized_at"
            " FROM jobs WHERE id = %s", (job_id,))
        return await cursor.fetchone()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="warning", access_log=False, loop="uvloop", http="httptools")
uvicorn.Server(config).run([listener])
"""
# Keeps each connection busy with one request after another; prints requests per second.
_CLIENT: Final = """
import asyncio, sys, time
port, path, key = int(sys.argv[1]), sys.argv[2], sys.argv[3]
num_clients, seconds = int(sys.argv[4]), float(sys.argv[5])
head = f"GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nAuthorization: Bearer {key}\\r\\n\\r\\n".encode()
async def ask(reader, writer):
    writer.write(head)
    answer = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
    assert answer.startswith(b"http/1.1 200"), answer
    length = int(answer.split(b"content-length: ")[1].split(b"\\r\\n")[0])
    await reader.readexactly(length)
async def client(until):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    num = 0
    while time.monotonic() < until:
        await ask(reader, writer)
        num += 1
    writer.close()
    return num
async def main():
    await asyncio.gather(*(client(time.monotonic() + 0.5) for _ in range(num_clients)))
    began = time.monotonic()
    counts = await asyncio.gather(*(client(began + seconds) for _ in range(num_clients)))
    print(sum(counts) / (time.monotonic() - began))
asyncio.run(main())
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.polling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="length of each of the four turns")
    figures.run(parser, _measure, arguments)


def _measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    with figures.servers(directory, pool_size=2) as servers:
        sessions = servers.sessions
        with transaction(sessions) as session:
            keys.create(session, secret=_KEY, tenant_id=DEFAULT_TENANT, name="bench", scopes=list(Scope))
            figures.register_engine(session, slots=_SLOTS)
        job_id = _finished_job(sessions)
        with _peer(servers) as peer_port, figures.api(servers) as (api_port, _):
            peer, ours = (peer_port, str(job_id)), (api_port, ids.job_id(job_id))
            turns = [(each, _rate(*each, seconds=asked.seconds)) for each in (peer, ours, ours, peer)]
            num_connections, wakes = asyncio.run(_wait_for_many(sessions, api_port))
    bare, polls = (statistics.mean(rate for which, rate in turns if which == each) for each in (peer, ours))
    p99 = statistics.quantiles(wakes, n=100)[98] * 1000
    return [
        Figure("bare single-row GET", bare, "/s"),
        Figure("GET /v1/jobs/{id}, with key, tenant, rate limit, ETag", polls, "/s"),
        Figure("polls relative to the bare GET", polls / bare, "x", ">= .8"),
        Figure(f"connections of the API while {_NUM_WAITING} callers wait", num_connections, "", "<= 2"),
        Figure("median from commit to a waiting caller", statistics.median(wakes) * 1000, "ms"),
        Figure("p99", p99, "ms", "<= 150"),
    ]


@contextmanager
def _peer(servers: Servers) -> Iterator[int]:
    url = servers.postgres_url.replace("+psycopg", "")
    with figures.process([sys.executable, "-c", _PEER, url]) as (_, lines):
        yield int(lines.readline())


def _rate(port: int, name: str, *, seconds: float) -> float:
    """Measure requests per second over a few connections, from a client process."""
    command = [
        sys.executable, "-c", _CLIENT, str(port), f"/v1/jobs/{name}", _KEY, str(_NUM_CLIENTS), str(seconds),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


async def _wait_for_many(sessions: sessionmaker[Session], port: int) -> tuple[int, list[float]]:
    """Count the API's connections while all wait; time each commit to its response."""
    leases = [_running_job(sessions) for _ in range(_NUM_ENDS)]
    arrived: list[tuple[int, float]] = []

    async def wait(which: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"GET /v1/jobs/{ids.job_id(leases[which].job_id)}?wait=50 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {_KEY}\r\n\r\n"
        )
        writer.write(head.encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        arrived.append((which, time.monotonic()))
        assert answer.startswith(b"HTTP/1.1 200"), answer  # noqa: S101  # otherwise nothing was measured
        writer.close()

    waiting = [asyncio.create_task(wait(number % len(leases))) for number in range(_NUM_WAITING)]
    await asyncio.sleep(8)
    num_connections = await asyncio.to_thread(_num_busy_connections, sessions)
    ended: list[float] = []
    for lease in leases:
        await asyncio.to_thread(_complete, sessions, lease)
        ended.append(time.monotonic())
        await asyncio.sleep(0.3)
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    return num_connections, [at - ended[which] for which, at in arrived]


def _num_busy_connections(sessions: sessionmaker[Session]) -> int:
    """Count the API's database connections that it used in the last second."""
    with sessions() as session:
        query = text(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longbatch-api'"
            " AND (state <> 'idle' OR state_change > clock_timestamp() - interval '1 second')"
        )
        return int(session.scalar(query) or 0)


def _finished_job(sessions: sessionmaker[Session]) -> UUID:
    lease = _running_job(sessions)
    _complete(sessions, lease)
    return lease.job_id


def _running_job(sessions: sessionmaker[Session]) -> Lease:
    """Start a job as a worker that then does nothing with it."""
    prompt = f"prompt {uuid7()}"
    counted = CountedPrompt(packed_ids=sha256(prompt.encode()).digest(), num_tokens=100, fingerprint="bench")
    asked = JobSpec(text=NewText(prompt, counted), task="generate", model=figures.MODEL, max_tokens=64)
    capacity = EngineSize(max_batch_size=_SLOTS).capacity
    with transaction(sessions) as session:
        submission.submit(session, [asked], Submitter(DEFAULT_TENANT, capacity))
    with transaction(sessions) as session:
        policy = ClaimPolicy(lease=timedelta(minutes=10), max_rescues=2)
        (claim,) = tick.tick(session, figures.MODEL, policy, ended=[], limit=1).claims
        return claim.lease


def _complete(sessions: sessionmaker[Session], lease: Lease) -> None:
    with transaction(sessions) as session:
        output = Output(text="the end", ids=(5, 6, 7), num_tokens=3)
        lifecycle.finish(session, [write_outcome(lease, _COMPLETE, output, settings=JobSettings())])


if __name__ == "__main__":
    main()
