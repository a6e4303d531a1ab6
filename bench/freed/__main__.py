"""`python -m bench.freed`: how soon blocks that an engine has freed, and a killed worker's jobs, go on.

- cancel: from the moment at which the engine's own gauge counts one request less to that at which its
  reservation is gone, while other jobs read prompts and generate.
- kill: `kill -9` of the inference worker while the engine is full; from the start of the new worker's
  dispatcher to its first claim, and the CPU that it took to get there.
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import psycopg

from bench.report import Row, judge, print_table, write_json
from cli.stack.options import StackOptions
from cli.stack.ready import INFERENCE_WORKER
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from jobs.prompts.tokenizer_files import tokenizer_directory
from jobs.settings import EngineSettings, EngineSide, TritonSettings
from worker.engine.client import EngineClient

_POLL_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 120.0
_ENGINE_PREFIX: Final = "LONGBATCH_ENGINE__"


@dataclass
class _Bench:
    """A running stack, its database and its engine's gauges."""

    stack: Stack
    database: "psycopg.Connection[Any]"
    client: EngineClient
    http: httpx2.Client
    words: int
    num_jobs: int

    def submit(self, words: int, max_tokens: int) -> str:
        text = " ".join(f"word{number % 977}" for number in range(words))
        body = {"input": f"{time.monotonic_ns()} {text}", "max_tokens": max_tokens, "ignore_eos": True}
        answer = self.http.post("/v1/jobs", json=body)
        if answer.is_error:
            raise RuntimeError(answer.text)
        found: str = answer.json()["id"]
        return found

    def count(self, condition: str) -> int:
        row = self.database.execute(f"SELECT count(*) FROM reservations WHERE {condition}").fetchone()  # noqa: S608  # ours
        return int(row[0]) if row else 0

    def num_inside(self) -> int:
        gauges = self.client.gauges()
        return gauges.num_inside if gauges is not None else -1

    def fill(self) -> list[str]:
        """Fill the engine with jobs of which one generates and the others come one after another."""
        jobs = [self.submit(self.words // 20, 1500)]
        jobs += [self.submit(self.words, 400) for _ in range(self.num_jobs - 1)]
        _until(lambda: self.count("state = 'held'") >= min(2, self.num_jobs))
        return jobs

    def drain(self, jobs: list[str]) -> None:
        for each in jobs:
            self.http.post(f"/v1/jobs/{each}/cancel")
        _until(lambda: self.count("true") == 0)


def _until(condition: Callable[[], object]) -> float:
    """Wait until the condition holds; return the monotonic time."""
    over = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > over:
            raise TimeoutError(condition)
        time.sleep(_POLL_SECONDS)
    return time.monotonic()


def _cancel(bench: _Bench) -> float:
    """Cancel a job that generates, while others read their prompts; return the delay of our books."""
    jobs = bench.fill()
    first = jobs[0].removeprefix("job_")
    row = f"job_id = '{first}'"
    _until(lambda: bench.http.get(f"/v1/jobs/{jobs[0]}").json()["completion_tokens"])
    before = bench.num_inside()
    bench.http.post(f"/v1/jobs/{jobs[0]}/cancel")
    in_engine = in_books = None
    over = time.monotonic() + _PATIENCE_SECONDS
    while (in_engine is None or in_books is None) and time.monotonic() < over:
        if in_books is None and not bench.count(row):
            in_books = time.monotonic()
        if in_engine is None and bench.num_inside() < before:
            in_engine = time.monotonic()
        time.sleep(_POLL_SECONDS)
    if in_engine is None or in_books is None:
        raise TimeoutError("the engine or the books never freed it")
    bench.drain(jobs[1:])
    return max(0.0, in_books - in_engine)


def _kill(bench: _Bench) -> tuple[float, float]:
    """Kill a full engine's worker; return seconds from the next dispatcher to its claim, and its CPU."""
    jobs = bench.fill()
    _until(lambda: bench.num_inside() > 0)
    old = bench.stack.pids[INFERENCE_WORKER]
    log = bench.stack.directory / "logs" / f"{INFERENCE_WORKER}.log"
    size = log.stat().st_size
    killed = bench.database.execute("SELECT clock_timestamp()").fetchone()
    bench.stack.send(INFERENCE_WORKER, signal.SIGKILL)
    _until(lambda: bench.stack.pids[INFERENCE_WORKER] not in (None, old))
    started = _until(lambda: b'"dispatcher.started"' in log.read_bytes()[size:])
    cpu = _cpu_seconds(bench.stack.pids[INFERENCE_WORKER])
    since = killed[0] if killed else None
    claimed = _until(
        lambda: (
            bench.database.execute(
                "SELECT count(*) FROM reservations WHERE state = 'held' AND created_at > %s", (since,)
            ).fetchone()
            != (0,)
        )
    )
    bench.drain(jobs)
    return claimed - started, cpu


def _cpu_seconds(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _running(engine: str, directory: Path) -> Iterator[_Bench]:
    chosen: EngineOptions | LlamaOptions = (
        LlamaOptions(gguf=bundled_gguf(), context=4096, slots=2, threads=1)
        if engine == "llama"
        else EngineOptions(mode="synthetic", tokenizer_dir=tokenizer_directory(None), time_scale=2)
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_")}
    options = StackOptions(directory=directory / "stack", engine=chosen, api_port=0, environment=inherited)
    with Stack(options) as stack:
        urls = stack.urls
        of_engine = {
            name.removeprefix(_ENGINE_PREFIX).lower(): value
            for name, value in (urls.engine_settings or {}).items()
            if name.startswith(_ENGINE_PREFIX)
        }
        side = EngineSide(
            triton=TritonSettings(url=urls.triton_grpc or "", metrics_url=urls.triton_metrics),
            engine=EngineSettings.model_validate(of_engine),
        )
        client = EngineClient(side.triton, side.engine, end_id=0)
        client.served()  # which finds out its kind
        headers = {"Authorization": f"Bearer {urls.api_key}"}
        with (
            psycopg.connect(urls.database_url or "", autocommit=True) as database,
            httpx2.Client(base_url=urls.api_url or "", headers=headers, timeout=60, trust_env=False) as http,
        ):
            words, num_jobs = (700, 4) if engine == "llama" else (12_000, 8)
            try:
                yield _Bench(stack, database, client, http, words, num_jobs)
            finally:
                client.close()
        stack.stop()
        stack.remove_data()


def measure(engine: str, directory: Path, *, runs: int) -> list[Row]:
    """Measure on one engine."""
    with _running(engine, directory) as bench:
        cancels = [_cancel(bench) for _ in range(runs)]
        kills = [_kill(bench) for _ in range(runs)]
    name = f"{engine}, median of {runs}"
    goals = (
        ("cancel: engine to books, s", [max(cancels)], "<= 2"),
        ("kill: dispatcher to next claim, s", [max(each for each, _ in kills)], "<= 3"),
        ("kill: CPU s until the dispatcher starts", [statistics.median(cpu for _, cpu in kills)], "<= 5"),
    )
    print(json.dumps({"engine": engine, "cancels": cancels, "kills": kills}))  # noqa: T201
    return [
        judge(what, name, list(values), goal=goal, peer="", scale="", seeds=runs)
        for what, values, goal in goals
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.freed", description=__doc__)
    parser.add_argument("--engine", choices=["local", "llama"], default="local")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the table here")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves as after Ctrl-C: servers are stopped
    with tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory:
        Path(directory).chmod(0o711)  # under root, Postgres runs as another user
        rows = measure(asked.engine, Path(directory), runs=asked.runs)
    print_table(rows, f"Freed blocks; load average {os.getloadavg()[0]:.1f} at the end")
    write_json(rows, asked.json)


if __name__ == "__main__":
    main()
