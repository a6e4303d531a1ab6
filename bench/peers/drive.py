"""Run the peers: start and warm up their processes, and gate them like the product's."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import manifest, plain_pool
from bench.stand.contenders import Span
from bench.stand.documents import Prompt
from bench.stand.stand import Stand

_REPOSITORY = Path(__file__).resolve().parents[2]
_SLOTS = 4


@dataclass(frozen=True, slots=True)
class Direct:
    """A script with one stream to Triton that keeps nothing.

    Attributes:
        one_at_a_time: wait for each answer before sending the next prompt.
    """

    one_at_a_time: bool = False
    admits: bool = False

    def run(self, stand: Stand, prompts: Sequence[Prompt]) -> Span:
        """Run the script's process to its end."""
        listed = _write(stand, prompts)
        mode = ["--one-at-a-time"] if self.one_at_a_time else []
        command = [sys.executable, "-m", "bench.peers.direct", stand.url("triton_grpc"), str(listed), *mode]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=_REPOSITORY)
        report: dict[str, Any] = json.loads(done.stdout)
        return Span(report["began"], report["ended"], report["tokens"])


@dataclass(frozen=True, slots=True)
class Pool:
    """A plain Celery pool with as many processes as the engine has slots.

    Attributes:
        claims: each task claims its row in Postgres and stores its result there.
    """

    claims: bool = False
    admits: bool = False

    def run(self, stand: Stand, prompts: Sequence[Prompt]) -> Span:
        """Run every task to its end; send prompts at their arrival times."""
        items = manifest.read(_write(stand, prompts))
        if self.claims:
            _fill(stand, len(items))
        with _worker(stand, self) as (process, app):
            is_batch = not any(item.at_s for item in items)
            if is_batch:
                process.send_signal(signal.SIGSTOP)
            began, sent, results = time.monotonic(), [], []
            for number, item in enumerate(items):
                time.sleep(max(0.0, began + item.at_s - time.monotonic()))
                sent.append(time.monotonic())
                results.append(app.send_task(plain_pool.TASK, (number, str(item.ids), item.limit)))
            if is_batch:
                began = time.monotonic()
                process.send_signal(signal.SIGCONT)
            ended = [result.get(timeout=3000, interval=0.2) for result in results]
        tokens = [num_tokens for num_tokens, _, _ in ended]
        waits = [] if is_batch else [first - at for (_, first, _), at in zip(ended, sent, strict=True)]
        return Span(began, max(at for _, _, at in ended), tokens, waits)


def _fill(stand: Stand, num_jobs: int) -> None:
    """Fill the pool's own table with queued jobs."""
    stand.ledger.database.execute(plain_pool.TABLE)
    stand.ledger.database.execute("TRUNCATE plain_pool_jobs")
    rows = "INSERT INTO plain_pool_jobs SELECT n, 'queued' FROM generate_series(0, %s) n"
    stand.ledger.database.execute(rows, [num_jobs - 1])


@contextmanager
def _worker(stand: Stand, pool: Pool) -> Iterator[tuple["subprocess.Popen[bytes]", Any]]:
    """Run a worker whose children are all warm; yield it and an app to send tasks."""
    broker_url = stand.url("broker_url")
    env = {**os.environ, "PEER_BROKER": broker_url, "PEER_TRITON": stand.url("triton_grpc")}
    if pool.claims:
        env["PEER_DATABASE"] = stand.url("database_url")
    arguments = ("worker", f"--concurrency={_SLOTS}", "--pool=prefork", "--loglevel=WARNING")
    command = [sys.executable, "-m", "celery", "-A", "bench.peers.plain_pool", *arguments]
    app = plain_pool.make_app(broker_url)
    with (stand.directory / "plain-pool.log").open("ab") as log:
        process = subprocess.Popen(command, env=env, cwd=_REPOSITORY, stdout=log, stderr=log)
    try:
        seen: set[int] = set()
        while len(seen) < _SLOTS:
            sent = [app.send_task(plain_pool.READY, (0.3,)) for _ in range(_SLOTS)]
            seen |= {result.get(timeout=60) for result in sent}
        yield process, app
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(30)
        app.close()


def _write(stand: Stand, prompts: Sequence[Prompt]) -> Path:
    sized = [(each.ids, each.spec.max_tokens, each.spec.arrives_at) for each in prompts]
    return manifest.write(stand.directory / "prompts", sized)
