"""One list, sent by a plain client and by Longbatch to the same stand-in for vLLM, and what each run took."""

import heapq
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

import httpx2

from bench import cpu
from bench.figures import process, running_stack, until
from bench.gpu.vllm import clients
from bench.gpu.vllm.gauges import Meter, Sample
from bench.gpu.vllm.product import Product
from bench.stand.documents import Prompt
from cli.stack.stack import Stack

CLIENT: Final = "client"
LONGBATCH: Final = "longbatch"
ENGINE: Final = "stand-in"
_START_S: Final = 60.0
_IDLE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The engine.

    Attributes:
        slots: requests that run at the same time.
        step_s: seconds of one step.
        blocks: of its KV cache.
    """

    slots: int
    step_s: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's run.

    Attributes:
        seconds: from before the submission to the last answer or stored result.
        full: share of the slots taken while requests or jobs waited.
        late: share of the seconds by which the stand-in's own steps came late.
        num_tokens: that the stand-in generated; it sends each as an event to a client that streams.
        cpu_s: CPU seconds by process.
        faults: jobs without exactly one answer of the right length.
    """

    contender: str
    seconds: float
    full: float
    late: float
    num_tokens: int
    cpu_s: Mapping[str, float]
    faults: int


@dataclass(frozen=True, slots=True)
class Span:
    """When a contender worked.

    Attributes:
        began: monotonic time before the submission.
        queued_until: monotonic time at which no job waited outside the engine any more.
        ended: monotonic time of the last answer.
        faults: see `Run`.
    """

    began: float
    queued_until: float
    ended: float
    faults: int


def least_steps(lengths: Sequence[int], slots: int) -> int:
    """Count the steps of an engine that begins the next answer of the list whenever a slot is free.

    Args:
        lengths: tokens of each answer, the end token included.
        slots: of the engine.
    """
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def share_full(samples: Sequence[Sample], slots: int, *, began: float, queued_until: float) -> float:
    """Return the mean share of the slots taken while something waited, inside the engine or outside.

    Args:
        samples: the engine's gauges, in order.
        slots: of the engine.
        began: monotonic time from which something waited.
        queued_until: monotonic time at which nothing waited outside any more.

    Raises:
        ValueError: nothing waited for as long as one reading.
    """
    until_s = max([queued_until, *(each.at for each in samples if each.waiting)])
    taken = [each.running for each in samples if began <= each.at <= until_s]
    if not taken:
        raise ValueError("nothing waited: more jobs than slots are needed")
    return fmean(taken) / slots


def both(directory: Path, shape: Shape, prompts: Sequence[Prompt], *, patience_s: float) -> list[Run]:
    """Run the client, and then Longbatch.

    Args:
        directory: empty, for the stack's data.
        shape: of the stand-in.
        prompts: the list.
        patience_s: for each contender; what has not ended by then counts as a fault.
    """
    command = [sys.executable, "-m", "bench.http_streams.engine", "--slots", str(shape.slots)]
    command += ["--step", str(shape.step_s), "--blocks", str(shape.blocks)]
    with process(command) as (pid, output):
        url = output.readline().strip()
        if not url:
            raise RuntimeError("the stand-in did not start")
        bench = _Bench(url, pid, shape)

        def flood() -> Span:
            found = clients.run(url, prompts, patience=patience_s)
            faults = found.wrong_length + found.unfinished + sum(found.errors.values())
            return Span(found.began, found.began, found.ended, faults)

        client = bench.run(CLIENT, flood, {CLIENT: time.process_time})
        settings = {
            "LONGBATCH_ENGINE__URL": url,
            "LONGBATCH_ENGINE__MAX_BATCH_SIZE": str(shape.slots),  # which is in no metric of vLLM
        }
        with running_stack(directory / "stack", None, **settings) as (stack, _):
            product = Product(stack.ready_file)

            def submit() -> Span:
                found = product.run(prompts, patience=patience_s)
                faults = found.lost + found.twice + found.wrong_length
                faults += found.unfinished
                queued_until = found.ended if found.unfinished else found.began + found.last_claim_s
                return Span(found.began, queued_until, found.ended, faults)

            try:
                longbatch = bench.run(LONGBATCH, submit, _clocks(stack))
            finally:
                product.http.close()
                product.ledger.close()
    return [client, longbatch]


class _Bench:
    """The stand-in, with what it counts."""

    def __init__(self, url: str, pid: int, shape: Shape) -> None:
        self._url = url
        self._pid = pid
        self._shape = shape
        self._meter = Meter(url)

    def run(self, contender: str, work: Callable[[], Span], clocks: Mapping[str, Callable[[], float]]) -> Run:
        """Measure one contender.

        Args:
            contender: its name.
            work: sends the list.
            clocks: count the CPU seconds of its processes.
        """
        until(self._meter.is_idle, seconds=_IDLE_S)
        clocks = {**clocks, ENGINE: lambda: cpu.of_tree(self._pid)}
        tokens, late_s = self._meter.sample().counters.generated, self._late_s()
        before = {name: clock() for name, clock in clocks.items()}
        with self._meter.sampling() as samples:
            span = work()
        spent = {name: clock() - before[name] for name, clock in clocks.items()}
        seconds = span.ended - span.began
        return Run(
            contender,
            seconds,
            share_full(samples, self._shape.slots, began=span.began, queued_until=span.queued_until),
            (self._late_s() - late_s) / seconds,
            int(self._meter.sample().counters.generated - tokens),
            spent,
            span.faults,
        )

    def _late_s(self) -> float:
        """Read by how much the stand-in's steps came late so far."""
        found = httpx2.get(f"{self._url}/steps", trust_env=False, timeout=_START_S).json()
        return float(found["late_s"])


def _clocks(stack: Stack) -> Mapping[str, Callable[[], float]]:
    return {
        name: lambda pid=pid: cpu.of_tree(pid)  # type: ignore[misc]  # mypy takes it for one without arguments
        for name, pid in stack.pids.items()
        if pid is not None
    }
