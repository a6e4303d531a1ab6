"""Target 7, `python -m bench.submits`: submissions a second against bare ones.

Single jobs: the peer is a FastAPI application with one route that checks a body with pydantic and inserts it
as text, in a transaction of its own. The same bodies go to both, each text once; ours is
counted, too, or put down for counting if it is long. Bulk: the peer is procrastinate's `batch_defer`, in an
interpreter that has it (`--procrastinate`); without it that line has no ratio.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2

from bench import cpu, figures
from bench.figures import MODEL, Figure, Servers
from jobs.database import transaction

_KEY: Final = "lb_0123456789abcdef_" + "b" * 43  # opens nothing outside this run
_NUM_CLIENTS: Final = 16
_SMALL_BYTES, _LARGE_BYTES = 400, 400_000
_PEER: Final = """
import sys, socket, uuid, fastapi, psycopg_pool, pydantic, uvicorn
from contextlib import asynccontextmanager
pool = psycopg_pool.AsyncConnectionPool(sys.argv[1], min_size=4, max_size=10, open=False)
@asynccontextmanager
async def running(_):
    async with pool:
        async with pool.connection() as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS bare_jobs (id uuid PRIMARY KEY, input text,"
                " max_tokens int, created_at timestamptz DEFAULT now())")
        yield
class Job(pydantic.BaseModel):
    input: str
    max_tokens: int
app = fastapi.FastAPI(lifespan=running)
@app.post("/v1/jobs", status_code=202)
async def submit(job: Job):
    job_id = uuid.uuid4()
    async with pool.connection() as connection:
        await connection.execute("INSERT INTO bare_jobs (id, input, max_tokens) VALUES (%s, %s, %s)",
            (job_id, job.input, job.max_tokens))
    return {"id": str(job_id)}
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="warning", access_log=False, loop="uvloop", http="httptools")
uvicorn.Server(config).run([listener])
"""
# Keeps each connection busy with one submission after another, no text twice; prints submissions per second.
_CLIENT: Final = """
import asyncio, itertools, random, sys, time
port, key, num_bytes = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
num_clients, seconds, seed = int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
words = "the of job queue long document answer token engine batch page claim row late early".split()
chance = random.Random(seed)
text = " ".join(chance.choice(words) for _ in range(num_bytes // 6))
numbers = itertools.count()
def body():
    number = f"{seed}-{next(numbers):08d} "
    return b'{"input": "%s", "max_tokens": 64}' % (number + text[: num_bytes - 60]).encode()
async def ask(reader, writer):
    sent = body()
    head = f"POST /v1/jobs HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nAuthorization: Bearer {key}\\r\\n"
    head += f"Content-Type: application/json\\r\\nContent-Length: {len(sent)}\\r\\n\\r\\n"
    writer.write(head.encode() + sent)
    answer = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
    assert answer.startswith(b"http/1.1 202"), answer
    await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\\r\\n")[0]))
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
# Reads lines of jobs from its input and defers them in one call; prints the seconds that the call took.
_BATCH_PEER: Final = """
import json, sys, time
import procrastinate
app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=sys.argv[1]))
@app.task(name="answer")
def answer(input, max_tokens): pass
jobs = [json.loads(line) for line in sys.stdin]
with app.open():
    app.schema_manager.apply_schema()
    answer.batch_defer(*jobs[:100])
    began = time.monotonic()
    answer.batch_defer(*jobs[100:])
    print(time.monotonic() - began)
"""


def options() -> argparse.ArgumentParser:
    """Declare the options of `measure`."""
    parser = argparse.ArgumentParser(prog="python -m bench.submits", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="length of each of the four turns")
    parser.add_argument("--lines", type=int, default=10_000, help="of the bulk submission")
    parser.add_argument("--procrastinate", type=Path, help="a Python interpreter that has it")
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    figures.run(options(), measure, arguments)


def measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    """Measure on servers of its own, with their data in this directory."""
    with figures.servers(directory, pool_size=2) as servers:
        with transaction(servers.sessions) as session:
            figures.admit(session, MODEL, _KEY)
            figures.register_engine(session, slots=4)
        with _peer(servers) as peer, figures.api(servers) as (port, pid):
            figures.wait_for_tokenizer(port)
            small = _pair(peer, port, pid, _SMALL_BYTES, asked)
            large = _pair(peer, port, pid, _LARGE_BYTES, asked)
            bulk = list(_bulk(servers, port, asked))
    return [
        *_figures(small, "single submits", ">= .8"),
        *_figures(large, "submits of 400 KB", ">= 1.5"),
        *bulk,
    ]


def _pair(
    peer: int, ours: int, pid: int, num_bytes: int, asked: argparse.Namespace
) -> tuple[float, float, float]:
    """Measure both in the order A B B A: submissions a second of the peer, ours, and CPU seconds of ours."""
    rates: dict[int, list[float]] = {peer: [], ours: []}
    spent = cpu.of_tree(pid)
    for turn, port in enumerate((peer, ours, ours, peer)):
        rates[port].append(_rate(port, num_bytes, asked.seconds, seed=4 * asked.seed + turn))
    bare, full = (statistics.mean(rates[each]) for each in (peer, ours))
    return bare, full, (cpu.of_tree(pid) - spent) / (full * 2 * (asked.seconds + 0.5))


def _figures(measured: tuple[float, float, float], name: str, goal: str) -> list[Figure]:
    bare, full, spent = measured
    return [
        Figure(f"{name}: bare FastAPI and INSERT", bare, "/s"),
        Figure(f"{name}: POST /v1/jobs", full, "/s"),
        Figure(f"7 {name}, of the bare ones", full / bare, "x", goal),
        Figure(f"{name}: CPU of the API, about", 1000 * spent, "ms"),
    ]


def _bulk(servers: Servers, port: int, asked: argparse.Namespace) -> Iterator[Figure]:
    lines = [json.dumps({"input": f"line {asked.seed}-{each:06d} of many small ones", "max_tokens": 64})
             for each in range(asked.lines + 100)]  # fmt: skip
    headers = {"Authorization": f"Bearer {_KEY}"}
    with httpx2.Client(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=300, trust_env=False
    ) as http:

        def submit(some: Sequence[str]) -> float:
            began = time.monotonic()
            answer = http.post("/v1/jobs/bulk", content="\n".join(some).encode()).raise_for_status().json()
            if answer["rejected"]:
                raise ValueError(f"refused: {answer['errors'][:3]}")
            return time.monotonic() - began

        submit(lines[:100])
        ours = asked.lines / submit(lines[100:])
    yield Figure(f"bulk of {asked.lines:,} small lines, over HTTP", ours, "/s")
    if asked.procrastinate is None:
        return
    url = servers.postgres_url.replace("+psycopg", "")
    command = [str(asked.procrastinate), "-c", _BATCH_PEER, url]
    done = subprocess.run(command, check=True, input="\n".join(lines), capture_output=True, text=True)
    theirs = asked.lines / float(done.stdout)
    yield Figure("procrastinate's batch_defer of the same lines", theirs, "/s")
    yield Figure("7 bulk, of batch_defer", ours / theirs, "x", ">= 3")


@contextmanager
def _peer(servers: Servers) -> Iterator[int]:
    url = servers.postgres_url.replace("+psycopg", "")
    with figures.process([sys.executable, "-c", _PEER, url]) as (_, lines):
        yield int(lines.readline())


def _rate(port: int, num_bytes: int, seconds: float, *, seed: int) -> float:
    """Measure submissions per second over a few connections, from a client process."""
    command = [
        sys.executable,
        "-c",
        _CLIENT,
        str(port),
        _KEY,
        *map(str, (num_bytes, _NUM_CLIENTS, seconds, seed)),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
