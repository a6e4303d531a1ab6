"""Kills and cancels while vLLM is full: how long blocks stay reserved, and how long the engine idles."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import httpx2

from bench.figures import until
from bench.gpu.vllm.gauges import Meter
from bench.gpu.vllm.product import Product
from bench.stand.documents import Prompt
from cli.stack.ready import INFERENCE_WORKER
from jobs.ids import job_id

Case = Literal["worker", "engine", "cancel"]
_PATIENCE_S: Final = 240.0
_POLL_S: Final = 0.05


@dataclass
class Drill:
    """One case, with the moments at which something changed."""

    case: Case
    product: Product
    meter: Meter
    began: float = field(default_factory=time.monotonic)
    moments: list[tuple[float, str]] = field(default_factory=list)

    def note(self, event: str) -> float:
        """Record an event and return its monotonic time."""
        now = time.monotonic()
        self.moments.append((round(now - self.began, 2), event))
        print(self.moments[-1], flush=True)  # noqa: T201  # a command prints
        return now

    def until(self, event: str, is_true: Callable[[], bool]) -> float:
        """Wait for an event and record it."""
        until(is_true, seconds=_PATIENCE_S, every=_POLL_S)
        return self.note(event)

    def num_running(self) -> float:
        """Count requests in vLLM's batch; 0 while it does not answer."""
        try:
            return self.meter.sample().running
        except httpx2.HTTPError:
            return 0.0


def drill(
    case: Case,
    prompts: Sequence[Prompt],
    *,
    product: Product,
    meter: Meter,
    after_s: float,
    engine_pid: Path,
    restart: str,
) -> dict[str, Any]:
    """Run the list, disturb it after some seconds, and return the moments and the verdict."""
    product.ledger.clear()
    made = Drill(case, product, meter)
    ids = product.submit(prompts)
    submit_s = made.note("submitted") - made.began
    made.until("first request in vLLM", lambda: made.num_running() > 0)
    time.sleep(after_s)
    match case:
        case "worker":
            _kill_worker(made)
        case "engine":
            _kill_engine(made, engine_pid, restart)
        case "cancel":
            _cancel(made)
    product.wait(time.monotonic() + _PATIENCE_S)
    verdict = product.verdict(ids, prompts, began=made.began, submit_s=submit_s)
    return {"case": case, "jobs": len(ids), "moments": made.moments, "verdict": asdict(verdict)}


def _kill_worker(made: Drill) -> None:
    pid = made.product.pid(INFERENCE_WORKER)
    if pid is None:
        raise RuntimeError("the inference worker is down already")
    os.kill(pid, signal.SIGKILL)
    made.note("kill -9 of the inference worker")
    made.until("vLLM dropped the worker's requests", lambda: made.num_running() == 0)
    made.until("a new worker runs", lambda: made.product.pid(INFERENCE_WORKER) not in {pid, None})
    made.until("vLLM works again", lambda: made.num_running() > 0)


def _kill_engine(made: Drill, engine_pid: Path, restart: str) -> None:
    os.killpg(int(engine_pid.read_text()), signal.SIGKILL)
    made.note("kill -9 of vLLM")
    subprocess.run(restart, shell=True, check=True)  # noqa: S602  # the operator's own command
    made.note("vLLM answers again")
    made.until("vLLM works again", lambda: made.num_running() > 0)


def _cancel(made: Drill) -> None:
    rows = made.product.ledger.database.execute(
        "SELECT jobs.id FROM jobs WHERE state = 'running' ORDER BY prompt_tokens DESC LIMIT 1"
    ).fetchall()
    (victim,) = rows[0]
    before = made.meter.sample()
    made.product.http.post(f"/v1/jobs/{job_id(victim)}/cancel").raise_for_status()
    made.note("cancelled the longest running job")
    made.until("vLLM freed its blocks", lambda: made.meter.sample().kv < before.kv)
    made.until(
        "Longbatch freed its blocks",
        lambda: made.product.ledger.count("reservations", f"job_id = '{victim}'") == 0,
    )


def append(found: dict[str, Any], file: Path) -> None:
    """Append the outcome to a results file."""
    with file.open("a") as out:
        out.write(json.dumps(found) + "\n")
