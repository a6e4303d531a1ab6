"""The engine's Prometheus gauges, with the names of TensorRT-LLM's backend."""

import time
from collections.abc import Callable
from typing import Protocol

from .scheduler import Iteration, Scheduler

_PERIOD = 0.1  # seconds between refreshes while busy, like the real backend; a change costs an IPC round trip
_REQUESTS = ("nv_trt_llm_request_metrics", "request_type")
_BLOCKS = ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type")
_BATCHER = ("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric")
# Not in the real backend: tests of admission need them.
_LOCAL = ("longbatch_local_engine_metrics", "local_engine_metric")
_HELP = {
    _REQUESTS: "Requests inside the executor; those beyond the batch are not counted",
    _BLOCKS: "KV cache blocks",
    _BATCHER: "In-flight batcher",
    _LOCAL: "Local engine: hidden queue, waits for room, blocks set aside for active requests, reusable ones",
}


class Gauge(Protocol):
    """One labelled gauge."""

    def set(self, value: float) -> None: ...  # noqa: D102


class Gauges:
    """The gauges of the scheduler's state, refreshed at most every 100 ms while busy, at once when idle."""

    def __init__(self, make: Callable[[str, str, dict[str, str]], Gauge]) -> None:
        """Args: make(name, help, labels) creates a gauge."""
        self._make = make
        self._gauges: dict[tuple[tuple[str, str], str], Gauge] = {}
        self._shown: dict[tuple[tuple[str, str], str], float] = {}
        self._next = 0.0

    def show(self, scheduler: Scheduler, step: Iteration | None) -> None:
        """Show this state, at once if there is nothing to iterate on, otherwise soon."""
        now = time.monotonic()
        if step is not None and now < self._next:
            return
        self._next = now + _PERIOD
        for (family, kind), value in _readings(scheduler, step).items():
            self._set(family, kind, value)

    def _set(self, family: tuple[str, str], kind: str, value: float) -> None:
        key = family, kind
        if self._shown.get(key) == value:
            return
        if key not in self._gauges:
            name, label = family
            self._gauges[key] = self._make(name, _HELP[family], {label: kind})
        self._gauges[key].set(value)
        self._shown[key] = value


def _readings(scheduler: Scheduler, step: Iteration | None) -> dict[tuple[tuple[str, str], str], float]:
    capacity = scheduler.capacity
    # The executor fetches no more requests than the batch has slots; a fetched request that does not fit into
    # the pool waits.
    fetched = min(capacity.max_batch_size, len(scheduler.active) + len(scheduler.waiting))
    scheduled = len(scheduler.active)
    used = scheduler.used_blocks
    in_prefill = sum(not sequence.is_generating for sequence in scheduler.active)
    return {
        (_REQUESTS, "active"): fetched,
        (_REQUESTS, "max"): capacity.max_batch_size,
        (_REQUESTS, "scheduled"): scheduled,
        (_REQUESTS, "context"): in_prefill,
        (_REQUESTS, "waiting"): fetched - scheduled,
        (_BLOCKS, "max"): capacity.max_blocks,
        (_BLOCKS, "free"): capacity.max_blocks - used,
        (_BLOCKS, "used"): used,
        (_BLOCKS, "tokens_per"): capacity.tokens_per_block,
        (_BLOCKS, "reused"): scheduler.reusable.num_reused,
        (_BLOCKS, "fraction"): used / capacity.max_blocks,
        (_BATCHER, "generation_requests"): scheduled - in_prefill,
        (_BATCHER, "total_context_tokens"): step.prefill_tokens if step else 0,
        (_BATCHER, "paused_requests"): 0,
        (_BATCHER, "micro_batch_id"): 0,
        (_LOCAL, "queued"): len(scheduler.waiting),
        (_LOCAL, "refusals"): scheduler.num_refusals,
        (_LOCAL, "reserved_blocks"): scheduler.reserved_blocks,
        (_LOCAL, "reusable_blocks"): scheduler.reusable.num_free,
    }
