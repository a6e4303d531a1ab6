"""What system tests need: a client of the running stack, texts of any length, and the engine's gauges."""

import os
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from pydoc_data.topics import topics
from types import TracebackType
from typing import Any, Self

import httpx2

import ready_cluster
from cli.stack.options import StackOptions
from cli.stack.ready import Urls
from cli.stack.stack import Stack
from cli.stack.supervised import Backoff
from support import NO_CERTIFICATES, PATIENCE, eventually

# The variables that steer tests; no program of ours knows them.
OF_TESTS = frozenset({"LONGBATCH_PROVE", "LONGBATCH_SEED"})
# Names the file to which the local engine of a starting stack writes what it does.
TRACE = "LOCAL_ENGINE_TRACE"
# Start again at once what dies.
AT_ONCE = Backoff(first=timedelta(seconds=0.1), ceiling=timedelta(seconds=0.2))
# An A6000 reads 90,000 tokens in 46 s; here in little more than one.
TIME_SCALE = 40.0
LONG_CHARS = 405_000  # more than 90,000 tokens: about 4.4 characters each
TERMINAL = frozenset({"completed", "failed", "cancelled", "expired"})
REFERENCE = "\n\n".join(topics[name] for name in sorted(topics, key=lambda name: -len(topics[name])))


def text_of(num_chars: int, *, start: int = 0) -> str:
    """English text of this length: Python's language reference from character `start` on."""
    doubled = REFERENCE + REFERENCE
    return doubled[start : start + num_chars]


@contextmanager
def running_stack(options: StackOptions) -> Iterator[Stack]:
    """Run a stack that starts again at once what dies, and remove its data at the end."""
    stack = Stack(options, backoff=AT_ONCE)
    with ready_cluster.copied():
        stack.start()
    yield stack
    stack.stop()
    stack.remove_data()


def variables_of(stack: Stack) -> dict[str, str]:
    """The environment in which a command calls this stack."""
    inherited = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    urls = {"LONGBATCH_API_URL": stack.urls.api_url or "", "LONGBATCH_API_KEY": stack.urls.api_key or ""}
    return {**inherited, **urls}


def trace_of(stack: Stack) -> Path:
    """The file to which the local engine of a test's stack writes what it does."""
    return stack.options.directory / "engine-trace.jsonl"


class Client:
    """Speaks to the API; every answer is checked to be no server error."""

    def __init__(self, urls: Urls) -> None:
        headers = {"Authorization": f"Bearer {urls.api_key}"}
        self._http = httpx2.Client(
            base_url=urls.api_url or "",
            timeout=70,
            trust_env=False,
            headers=headers,
            verify=NO_CERTIFICATES,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    @property
    def http(self) -> httpx2.Client:
        """For what has no method here."""
        return self._http

    def submit(self, text: str, **fields: object) -> dict[str, Any]:
        """The accepted job."""
        return self._json(self._http.post("/v1/jobs", json={"input": text, **fields}), 202)

    def job(self, job_id: str, *, wait: float | None = None) -> dict[str, Any]:
        """The job as it is now, or after up to `wait` seconds."""
        query = {} if wait is None else {"wait": wait}
        return self._json(self._http.get(f"/v1/jobs/{job_id}", params=query), 200)

    def result(self, job_id: str) -> dict[str, Any]:
        return self._json(self._http.get(f"/v1/jobs/{job_id}/result"), 200)

    def cancel(self, job_id: str) -> dict[str, Any]:
        return self._json(self._http.post(f"/v1/jobs/{job_id}/cancel"), 200)

    def finished(self, job_id: str, *, timeout: float = PATIENCE) -> dict[str, Any]:
        """The job once it has ended; asks again while the API is away."""

        def ended() -> dict[str, Any] | None:
            try:
                job = self.job(job_id, wait=10)
            except httpx2.TransportError:
                return None
            return job if job["state"] in TERMINAL else None

        return eventually(ended, timeout=timeout, interval=0.1) or {}

    def streaming(self, job_id: str, *, timeout: float = PATIENCE) -> dict[str, Any]:
        """The job once its first token has come."""

        def started() -> dict[str, Any] | None:
            job = self.job(job_id)
            assert job["state"] not in TERMINAL, job
            return job if job["first_token_at"] else None

        return eventually(started, timeout=timeout) or {}

    @staticmethod
    def _json(response: httpx2.Response, status: int) -> dict[str, Any]:
        assert response.status_code == status, response.text[:500]
        found: dict[str, Any] = response.json()
        return found


@dataclass
class Gauges:
    """The engine's gauges, sampled while something runs.

    Attributes:
        samples: each by `family{kind}`, e.g. `requests{active}`.
    """

    url: str
    samples: list[dict[str, float]] = field(default_factory=list)

    def read(self) -> dict[str, float]:
        """What they show now."""
        with urllib.request.urlopen(self.url, timeout=PATIENCE) as answer:  # noqa: S310  # our own loopback server
            text = answer.read().decode()
        found = re.findall(
            r'^(\w+)\{[^}]*?(?:_type|_metric|_metrics)="(\w+)"[^}]*\} ([\d.e+-]+)$', text, re.MULTILINE
        )
        return {
            f"{_FAMILIES[name]}{{{kind}}}": float(value) for name, kind, value in found if name in _FAMILIES
        }

    @contextmanager
    def sampled(self, *, interval: float = 0.03) -> Iterator[None]:
        """Every sample while the block runs is in `samples`."""
        stop = threading.Event()

        def sample() -> None:
            while not stop.wait(interval):
                self.samples.append(self.read())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def longest(self, kind: str) -> int:
        """The most samples in a row in which this gauge was above zero."""
        longest = run = 0
        for sample in self.samples:
            run = run + 1 if sample.get(kind, 0) > 0 else 0
            longest = max(longest, run)
        return longest

    def until_idle(self) -> None:
        """Wait until no request is active and no block used."""

        def is_idle() -> bool:
            now = self.read()
            return now["requests{active}"] == 0 and now["blocks{used}"] == 0

        eventually(is_idle)


_FAMILIES = {
    "nv_trt_llm_request_metrics": "requests",
    "nv_trt_llm_kv_cache_block_metrics": "blocks",
    "longbatch_local_engine_metrics": "local",
}
