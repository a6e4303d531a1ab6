"""`python -m bench.expansion`: what it costs to take in lines of a batch and jobs of a bulk submission.

Target 15: the lines of a batch become queued jobs, against the tokenizer's `encode_batch` alone on the same
prompts and cores. The way-in half of target 13: a bulk submission and the counting of its prompts, in CPU
seconds a job of the API, the service worker and Postgres; once with prompts short enough to be counted at
once, once with all counting left to the service worker. Peer and product alternate over the seeds (A B B A).
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import httpx2
import psycopg
import tokenizers

from bench import cpu, figures
from bench.figures import MODEL, Figure, Servers, until
from bench.simulation.workloads import Spec
from bench.stand.documents import Author, Prompt
from jobs.database import transaction
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory

_KEY: Final = f"lb_{'a' * 16}_{'a' * 43}"
_SETTINGS: Final = {"LONGBATCH_ENGINE__MODEL": MODEL}
_COUNTED_LATER: Final = {"LONGBATCH_API__INLINE_COUNT_CHARS": "0"}
_POLL_S: Final = 0.005
_LIMIT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Intake:
    """How some jobs came in.

    Attributes:
        seconds: until the last one was queued.
        cpu_s: of the API, the service worker and Postgres, in all.
    """

    seconds: float
    cpu_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Product:
    """The processes under measurement."""

    http: httpx2.Client
    rows: psycopg.Connection
    pids: dict[str, int]

    def batch(self, prompts: Sequence[Prompt]) -> Intake:
        """Measure from the acceptance of a batch until its last line is a queued job."""
        content = b"".join(
            figures.batch_line(number, each.text, model=MODEL, max_tokens=each.spec.max_tokens)
            for number, each in enumerate(prompts)
        )
        file = {"file": ("in.jsonl", content)}
        sent = self.http.post("/v1/files", files=file, data={"purpose": "batch"})
        file_id = sent.raise_for_status().json()["id"]
        asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch_id = self.http.post("/v1/batches", json=asked).raise_for_status().json()["id"]
        state = "SELECT {} FROM batches WHERE id = CAST(%s AS uuid)"
        self._wait(state.format("state <> 'validating'"), batch_id.removeprefix("batch_"))
        before, began = self._cpu_s(), time.monotonic()
        self._wait(state.format("is_expanded"), batch_id.removeprefix("batch_"))
        return self._end(before, began, prompts)

    def bulk(self, prompts: Sequence[Prompt]) -> Intake:
        """Measure a bulk submission until its last prompt is counted."""
        lines = [{"input": each.text, "max_tokens": each.spec.max_tokens} for each in prompts]
        content = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
        before, began = self._cpu_s(), time.monotonic()
        answer = self.http.post("/v1/jobs/bulk", content=content).raise_for_status().json()
        if answer["rejected"]:
            raise ValueError(f"refused: {answer['errors'][:3]}")
        self._wait("SELECT NOT EXISTS (SELECT FROM jobs WHERE state = 'preparing')")
        return self._end(before, began, prompts)

    def _end(self, before: dict[str, float], began: float, prompts: Sequence[Prompt]) -> Intake:
        seconds, after = time.monotonic() - began, self._cpu_s()
        found = self.rows.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall()
        if found != [("queued", len(prompts))]:
            raise RuntimeError(f"not every line is a queued job: {found}")
        self.rows.execute(
            "UPDATE batches SET state = 'cancelled', cancelled_at = now(), num_stopped = num_lines"
        )
        self.rows.execute("DELETE FROM jobs")
        self.rows.execute("DELETE FROM texts")  # otherwise equal prompts would not be counted again
        return Intake(seconds, {name: after[name] - before[name] for name in before})

    def _wait(self, query: str, *parameters: str) -> None:
        def is_so() -> bool:
            found = self.rows.execute(query, parameters).fetchone()
            return found is not None and bool(found[0])

        until(is_so, seconds=_LIMIT_S, every=_POLL_S)

    def _cpu_s(self) -> dict[str, float]:
        return {name: cpu.of_tree(pid) for name, pid in self.pids.items()}


def options() -> argparse.ArgumentParser:
    """Declare the options of `measure`."""
    parser = argparse.ArgumentParser(prog="python -m bench.expansion", description=__doc__)
    parser.add_argument("--lines", type=int, default=6000, help="of each batch")
    parser.add_argument("--jobs", type=int, default=1500, help="of each bulk submission")
    parser.add_argument("--tokens", type=int, default=200, help="of each prompt")
    parser.add_argument("--seeds", type=int, default=3, help="of the prompts")
    parser.add_argument("--first-seed", type=int, default=0)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    figures.run(options(), measure, arguments)


def measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    """Measure on servers of its own, with their data in this directory."""
    author = Author(Tokenizer.load())
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    with figures.servers(directory, pool_size=2) as servers:
        with transaction(servers.sessions) as session:
            figures.admit(session, MODEL, _KEY)
            figures.register_engine(session, slots=4)
        with _product(servers) as product:
            found = _batches(product, author, asked, seeds)
            found += _bulks(product, author, asked, seeds, "counted at once")
        with _product(servers, **_COUNTED_LATER) as product:
            found += _bulks(product, author, asked, seeds, "counted by the service worker")
    return found


def _batches(product: Product, author: Author, asked: argparse.Namespace, seeds: range) -> list[Figure]:
    """Measure target 15."""
    product.batch(_prompts(author, asked.tokens, 200, seed=2**20))  # warm up
    ours: list[float] = []
    peers: list[float] = []
    costs: list[Intake] = []
    for seed in seeds:
        prompts = _prompts(author, asked.tokens, asked.lines, seed=seed)
        if seed % 2:
            peers.append(len(prompts) / _encode_batch(prompts))
        costs.append(product.batch(prompts))
        ours.append(len(prompts) / costs[-1].seconds)
        if not seed % 2:
            peers.append(len(prompts) / _encode_batch(prompts))
    rate = median(ours)
    ratio = median(mine / peer for mine, peer in zip(ours, peers, strict=True))
    name = f"15 lines of {asked.tokens} tokens to queued jobs"
    return [
        Figure(name, rate, "lines/s", ">= 2,500"),
        Figure("encode_batch alone on the same prompts", median(peers), "prompts/s"),
        Figure("15 lines to jobs, of encode_batch", ratio, "x", ">= 0.4"),
        *_cost(costs, asked.lines, "a line"),
    ]


def _bulks(
    product: Product, author: Author, asked: argparse.Namespace, seeds: range, how: str
) -> list[Figure]:
    """Measure the way-in half of target 13."""
    product.bulk(_prompts(author, asked.tokens, 200, seed=2**20))  # warm up
    costs = [product.bulk(_prompts(author, asked.tokens, asked.jobs, seed=seed)) for seed in seeds]
    return [
        Figure(
            f"bulk of {asked.jobs:,}, {how}", median(asked.jobs / each.seconds for each in costs), "jobs/s"
        ),
        *_cost(costs, asked.jobs, f"a job, {how}"),
    ]


def _cost(costs: Sequence[Intake], num: int, per: str) -> Iterator[Figure]:
    """Build the figures of CPU time: the median over the seeds, in all and of each process."""
    whole = median(sum(each.cpu_s.values()) for each in costs)
    yield Figure(f"CPU {per}", 1000 * whole / num, "ms")
    for name in costs[0].cpu_s:
        yield Figure(f"of it: {name}", 1000 * median(each.cpu_s[name] for each in costs) / num, "ms")


def _encode_batch(prompts: Sequence[Prompt]) -> float:
    """Return the seconds that the tokenizer alone takes on all cores."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_directory(None) / "tokenizer.json"))
    texts = [each.text for each in prompts]
    tokenizer.encode_batch(texts[:100])
    began = time.monotonic()
    tokenizer.encode_batch(texts)
    return time.monotonic() - began


def _prompts(author: Author, num_tokens: int, num: int, *, seed: int) -> list[Prompt]:
    return author.write([Spec(num_tokens, 8, 64, "small")] * num, seed=seed)


@contextmanager
def _product(servers: Servers, **variables: str) -> Iterator[Product]:
    """Run the API and a service worker for the block."""
    settings = {**_SETTINGS, **variables}
    headers = {"Authorization": f"Bearer {_KEY}"}
    with (
        figures.api(servers, **settings) as (port, api_pid),
        figures.service_worker(servers, **settings) as worker_pid,
        httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=_LIMIT_S, trust_env=False
        ) as http,
        psycopg.connect(servers.postgres_url, autocommit=True) as rows,
    ):
        figures.wait_for_tokenizer(port)
        postgres = cpu.parent_of(rows.info.backend_pid)
        yield Product(http, rows, {"API": api_pid, "service worker": worker_pid, "Postgres": postgres})


if __name__ == "__main__":
    main()
