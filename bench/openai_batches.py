"""`python -m bench.openai_batches`: how fast batches are accepted, and how much memory files take.

A whole local stack runs on random ports; its inference worker is held, so that only acceptance is measured.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
from sqlalchemy import Engine, text

from bench import figures
from bench.cpu import clear_peak, memory_mib
from bench.figures import Figure, until
from cli.stack.ready import API, INFERENCE_WORKER, SERVICE_WORKER
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.stack import Stack
from jobs import database
from jobs.prompts.tokenizer_files import tokenizer_directory
from jobs.settings import DatabaseSettings

_LARGE_LINE: Final = 25_000  # bytes: the 200 MB file has 8,000 such lines
_POLL_SECONDS: Final = 0.01
_LIMIT_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Bench:
    """A stack and the connections to it."""

    stack: Stack
    http: httpx2.Client
    rows: Engine

    def upload(self, content: Callable[[], Iterator[bytes]], num_bytes: int) -> str:
        """Upload a file with this content, and return its id."""
        head = (
            b'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--xx\r\n'
            b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        )
        tail = b"\r\n--xx--\r\n"

        def body() -> Iterator[bytes]:
            yield head
            yield from content()
            yield tail

        headers = {
            "content-type": "multipart/form-data; boundary=xx",
            "content-length": str(len(head) + num_bytes + len(tail)),
        }
        answer = self.http.post("/v1/files", content=body(), headers=headers)
        return str(answer.raise_for_status().json()["id"])

    def accept(self, file_id: str) -> tuple[str, float]:
        """Create a batch of the file; return its id and its seconds to `in_progress`."""
        asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        began = time.monotonic()
        batch = self.http.post("/v1/batches", json=asked).raise_for_status().json()
        while batch["status"] == "validating":
            time.sleep(_POLL_SECONDS)
            batch = self.http.get(f"/v1/batches/{batch['id']}").raise_for_status().json()
        if batch["status"] != "in_progress":
            raise SystemExit(f"the batch was not accepted: {batch}")
        return batch["id"], time.monotonic() - began

    def wait_for_jobs(self, batch_id: str, num_lines: int) -> float:
        """Wait until every line is a job; return the seconds."""
        began = time.monotonic()
        count = text("SELECT count(*) = :num FROM jobs WHERE batch_id = CAST(:id AS uuid)")
        wanted = {"num": num_lines, "id": batch_id.removeprefix("batch_")}
        with self.rows.connect() as connection:
            until(lambda: connection.scalar(count, wanted), seconds=_LIMIT_SECONDS, every=_POLL_SECONDS)
        return time.monotonic() - began

    @contextmanager
    def growth(self, service: str, found: list[Figure], name: str, *, goal: int) -> Iterator[None]:
        """Measure how far the service's memory grows during the block, at its peak."""
        pid = self.stack.pids[service] or 0
        before = memory_mib(pid, peak=False)
        clear_peak(pid)
        yield
        grown = memory_mib(pid) - before
        found.append(Figure(name, grown, "MiB", f"< {goal}"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.openai_batches", description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000, help="small lines of the first batch")
    parser.add_argument("--bytes", type=int, default=200_000_000, help="size of the second batch's file")
    figures.run(parser, _measure, arguments)


def _measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    with _stack(directory) as bench:
        return [*_small_lines(bench, asked.lines), *_large_file(bench, asked.bytes)]


def _small_lines(bench: Bench, num_lines: int) -> list[Figure]:
    found: list[Figure] = []
    lines = [_line(number, f"What is {number} times seven?") for number in range(num_lines)]
    content = b"".join(lines)
    bench.accept(bench.upload(lambda: iter(lines[:100]), sum(map(len, lines[:100]))))  # warm up
    began = time.monotonic()
    file_id = bench.upload(lambda: iter([content]), len(content))
    found.append(Figure(f"upload of {num_lines:,} lines", num_lines / (time.monotonic() - began), "lines/s"))
    with bench.growth(SERVICE_WORKER, found, f"{num_lines:,} lines: service worker grows by", goal=100):
        batch_id, accepted = bench.accept(file_id)
        expanded = bench.wait_for_jobs(batch_id, num_lines)
    found.append(Figure("lines accepted", num_lines / accepted, "lines/s", ">= 10,000"))
    found.append(Figure("accepted lines to jobs", num_lines / expanded, "lines/s"))
    began = time.monotonic()
    for _ in range(100):
        bench.http.get(f"/v1/batches/{batch_id}").raise_for_status()
    found.append(Figure("poll of its counts", (time.monotonic() - began) * 10, "ms"))
    began = time.monotonic()
    _cancel(bench, batch_id)
    found.append(Figure("cancelled lines", num_lines / (time.monotonic() - began), "lines/s"))
    return found


def _large_file(bench: Bench, num_bytes: int) -> list[Figure]:
    found: list[Figure] = []
    lines = [_line(number, f"{number} " + "word " * (_LARGE_LINE // 5)) for number in range(10)]
    num_lines = num_bytes // len(lines[0])
    lines = [_line(number, f"{number} " + "word " * (_LARGE_LINE // 5)) for number in range(num_lines)]
    size = sum(map(len, lines))
    shown = f"{size / 1e6:.0f} MB"
    began = time.monotonic()
    with bench.growth(API, found, f"upload of {shown}: API grows by", goal=100):
        file_id = bench.upload(lambda: iter(lines), size)
    found.append(Figure(f"upload of {shown}", size / 1e6 / (time.monotonic() - began), "MB/s"))
    with bench.growth(SERVICE_WORKER, found, f"validating {shown}: service worker grows by", goal=100):
        batch_id, accepted = bench.accept(file_id)
    found.append(Figure(f"validating {shown}", size / 1e6 / accepted, "MB/s"))
    began = time.monotonic()
    with bench.growth(API, found, f"download of {shown}: API grows by", goal=100):
        _download(bench, file_id, size)
    found.append(Figure(f"download of {shown}", size / 1e6 / (time.monotonic() - began), "MB/s"))
    _cancel(bench, batch_id)
    return found


def _download(bench: Bench, file_id: str, size: int) -> None:
    with bench.http.stream("GET", f"/v1/files/{file_id}/content") as answer:
        received = sum(len(chunk) for chunk in answer.iter_bytes())
    if received != size:
        raise SystemExit(f"{received} of {size} bytes came back")


def _cancel(bench: Bench, batch_id: str) -> None:
    status = bench.http.post(f"/v1/batches/{batch_id}/cancel").raise_for_status().json()["status"]
    while status != "cancelled":
        time.sleep(_POLL_SECONDS)
        status = bench.http.get(f"/v1/batches/{batch_id}").raise_for_status().json()["status"]


def _line(number: int, question: str) -> bytes:
    return figures.batch_line(number, question, model="llama-3.1-8b-instruct", max_tokens=16)


@contextmanager
def _stack(directory: Path) -> Iterator[Bench]:
    engine = EngineOptions(mode="synthetic", tokenizer_dir=tokenizer_directory(None))
    with figures.running_stack(directory, engine) as (stack, http):
        stack.hold(INFERENCE_WORKER)
        assert stack.urls.database_url is not None  # noqa: S101  # it runs its own
        rows = database.make_engine(DatabaseSettings.model_validate({"url": stack.urls.database_url}))
        yield Bench(stack, http, rows)
        rows.dispose()


if __name__ == "__main__":
    main()
