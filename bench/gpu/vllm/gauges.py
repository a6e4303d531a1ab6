"""vLLM's own gauges and counters during a run, read from its `/metrics`."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Final

import httpx2

from worker.engine.exposition import parse

EVERY_S: Final = 0.2
_PREFIX: Final = "vllm:"
_CACHE_INFO: Final = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since vLLM started.

    Attributes:
        preempted: requests that lost their blocks and were computed again.
        queried: prompt tokens looked up in the prefix cache; a blocked request counts at every step.
        hit: prompt tokens found there.
        prompt: prompt tokens of requests that ran.
        generated: output tokens.
    """

    preempted: float = 0
    queried: float = 0
    hit: float = 0
    prompt: float = 0
    generated: float = 0

    def since(self, earlier: "Counters") -> "Counters":
        """Subtract earlier totals."""
        names = [each.name for each in fields(self)]
        return Counters(*(getattr(self, name) - getattr(earlier, name) for name in names))


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading.

    Attributes:
        at: monotonic seconds.
        running: requests in the batch.
        waiting: requests that wait inside vLLM.
        kv: share of the KV pool that running requests hold.
    """

    at: float
    running: float
    waiting: float
    kv: float
    counters: Counters


@dataclass(frozen=True, slots=True)
class Load:
    """Gauges of one run, summed up.

    Attributes:
        full: share of the samples with every slot taken.
        idle: share of the samples with no request in the batch.
    """

    samples: int
    mean_running: float
    peak_running: float
    mean_waiting: float
    peak_waiting: float
    mean_kv: float
    peak_kv: float
    full: float
    idle: float


_SERIES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv",
    "vllm:num_preemptions_total": "preempted",
    "vllm:prefix_cache_queries_total": "queried",
    "vllm:prefix_cache_hits_total": "hit",
    "vllm:prompt_tokens_total": "prompt",
    "vllm:generation_tokens_total": "generated",
}


def read(exposition: str, *, at: float) -> Sample:
    """Read one sample from the text of `/metrics`; gauges of several engines add up."""
    names = tuple(f"{name}{mark}" for name in _SERIES for mark in "{ ")
    lines = [line for line in exposition.splitlines() if line.startswith(names)]
    found = dict.fromkeys(_SERIES.values(), 0.0)
    for sample in parse("\n".join(lines), _PREFIX):
        found[_SERIES[sample.name]] += sample.value
    counters = Counters(*(found[each.name] for each in fields(Counters)))
    return Sample(at, found["running"], found["waiting"], found["kv"], counters)


def load(samples: Sequence[Sample], *, slots: int) -> Load:
    """Sum up the samples of one run.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("no samples: the run was shorter than one reading")
    return Load(
        samples=len(samples),
        mean_running=round(fmean(each.running for each in samples), 1),
        peak_running=max(each.running for each in samples),
        mean_waiting=round(fmean(each.waiting for each in samples), 1),
        peak_waiting=max(each.waiting for each in samples),
        mean_kv=round(fmean(each.kv for each in samples), 3),
        peak_kv=round(max(each.kv for each in samples), 4),
        full=round(fmean(each.running >= slots for each in samples), 3),
        idle=round(fmean(each.running == 0 for each in samples), 3),
    )


class Meter:
    """Reads a vLLM server's metrics."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, timeout=10, trust_env=False)

    def sample(self) -> Sample:
        """Read now.

        Raises:
            httpx2.HTTPError: the server does not answer.
        """
        text = self._http.get("/metrics").raise_for_status().text
        return read(text, at=time.monotonic())

    def pool_tokens(self) -> int:
        """Return the tokens that the KV cache holds; vLLM keeps one block for itself."""
        lines = self._http.get("/metrics").raise_for_status().text.splitlines()
        info = "\n".join(line for line in lines if line.startswith(_CACHE_INFO))
        (labels, *_) = (each.labels for each in parse(info, _PREFIX))
        return (int(labels["num_gpu_blocks"]) - 1) * int(labels["block_size"])

    def is_idle(self) -> bool:
        """Return whether vLLM has no request at all."""
        now = self.sample()
        return now.running == 0 and now.waiting == 0

    def forget_prompts(self) -> None:
        """Empty the prefix cache; the server must run with `VLLM_SERVER_DEV_MODE=1`."""
        self._http.post("/reset_prefix_cache").raise_for_status()

    @contextmanager
    def sampling(self) -> Iterator[list[Sample]]:
        """Take samples during the block; a missed reading leaves a gap."""
        found: list[Sample] = []
        over = threading.Event()

        def take() -> None:
            while not over.wait(EVERY_S):
                try:
                    found.append(self.sample())
                except httpx2.HTTPError:
                    continue

        thread = threading.Thread(target=take, name="gauges", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
