"""Independent callers: at random times, or each sending its next request after a reply."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from rich.table import Table

from cli.load.figures import LoadError, LoadReport, Percentiles, Timing
from cli.load.target import Target
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSide
from longbatch.server import ServerAccess

# Sends a prompt and waits for the whole output.
Ask = Callable[[str], Timing]
_MAX_ERRORS: Final = 5
_MAX_OPEN: Final = 1024  # requests at once, however fast they arrive
_WORDS: Final = (
    *("amber", "basin", "copper", "delta", "ember", "granite", "harbor"),
    *("island", "kernel", "lantern", "meadow", "orchid", "river", "summit"),
)


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """The load to send.

    Attributes:
        rate: arrivals per second; None for `concurrency` callers, each with one request at a time.
        limit_seconds: no request is sent after this time.
    """

    num_requests: int
    rate: float | None
    concurrency: int
    prompt_tokens: int
    max_tokens: int
    limit_seconds: float
    seed: int


class _Results:
    """The outcomes of requests, collected from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.timings: list[Timing] = []
        self.errors: list[str] = []
        self.num_failed = 0

    def take(self, ask: Ask, prompt: str) -> None:
        try:
            timing = ask(prompt)
        except LoadError as error:
            with self._lock:
                self.num_failed += 1
                if error.message not in self.errors and len(self.errors) < _MAX_ERRORS:
                    self.errors.append(error.message)
            return
        with self._lock:
            self.timings.append(timing)


@contextmanager
def target(
    through: Literal["triton", "api"], side: EngineSide, server: ServerAccess, *, max_tokens: int
) -> Iterator["Target"]:
    """Open the target that requests are sent to."""
    if through == "api":
        from cli.load.through_api import ApiTarget

        yield ApiTarget(server, max_tokens=max_tokens)
    else:
        from cli.load.through_triton import TritonTarget

        yield TritonTarget(side, max_tokens=max_tokens)


def measure(plan: LoadPlan, target: Target, *, tokenizer_path: str | None) -> LoadReport:
    """Send the planned requests and report their times; no caller waits for another."""
    tokenizer = Tokenizer.load(tokenizer_path)
    prompts = _prompts(plan, tokenizer)
    results = _Results()
    began = time.monotonic()

    def ask(prompt: str) -> Timing:
        return target.ask(prompt, tokenizer)

    run = _at_random_times if plan.rate is not None else _one_after_another
    num_sent = run(plan, lambda index: results.take(ask, prompts[index]))
    seconds = time.monotonic() - began
    timings = results.timings
    output_tokens = sum(each.output_tokens for each in timings)
    return LoadReport(
        entry=target.name,
        num_requests=num_sent,
        num_failed=results.num_failed,
        prompt_tokens=plan.prompt_tokens,
        max_tokens=plan.max_tokens,
        rate=plan.rate,
        concurrency=None if plan.rate is not None else plan.concurrency,
        seconds=round(seconds, 3),
        output_tokens=output_tokens,
        output_tokens_per_second=round(output_tokens / seconds, 2),
        requests_per_second=round(len(timings) / seconds, 3),
        tokens_are_counted=all(each.is_counted for each in timings),
        ttft=Percentiles.of([each.ttft for each in timings]),
        tpot=Percentiles.of([each.tpot for each in timings if each.tpot is not None]),
        latency=Percentiles.of([each.latency for each in timings]),
        errors=tuple(results.errors),
    )


def table(report: LoadReport) -> Table:
    """Format the report as a table."""
    how = f"{report.rate:g} requests/s" if report.rate else f"{report.concurrency} callers"
    title = f"{report.entry}: {report.num_requests} requests, {how}, {report.seconds:g} s"
    found = Table(
        "milliseconds", "mean", "p50", "p90", "p99", "max", box=None, title=title, title_justify="left"
    )
    measures = {
        "time to first token": report.ttft,
        "time per output token": report.tpot,
        "latency": report.latency,
    }
    for name, values in measures.items():
        if values is not None:
            each = (values.mean, values.p50, values.p90, values.p99, values.max)
            found.add_row(name, *(f"{1000 * value:.1f}" for value in each))
    found.caption_justify = "left"
    counted = "" if report.tokens_are_counted else " (counted in the texts: the server reports no count)"
    tokens = f"{report.output_tokens_per_second:g} output tokens/s{counted}"
    found.caption = f"{tokens}, {report.requests_per_second:g} requests/s"
    return found


def _at_random_times(plan: LoadPlan, take: Callable[[int], None]) -> int:
    """Send requests at exponential intervals, whether or not earlier ones have ended.

    Returns:
        How many were sent.
    """
    random = Random(plan.seed)  # noqa: S311  # reproducible on purpose
    room = threading.Semaphore(_MAX_OPEN)
    threads: list[threading.Thread] = []
    pause = threading.Event()
    began = due = time.monotonic()
    for index in range(plan.num_requests):
        due += random.expovariate(plan.rate or 1)
        if due - began > plan.limit_seconds:
            break
        pause.wait(max(0.0, due - time.monotonic()))
        room.acquire()

        def one(index: int = index) -> None:
            try:
                take(index)
            finally:
                room.release()

        threads.append(threading.Thread(target=one, name=f"caller-{index}", daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return len(threads)


def _one_after_another(plan: LoadPlan, take: Callable[[int], None]) -> int:
    """Send requests from `concurrency` callers, one at a time each; return the number."""
    ends_at = time.monotonic() + plan.limit_seconds

    def call(index: int) -> bool:
        if time.monotonic() >= ends_at:
            return False
        take(index)
        return True

    with ThreadPoolExecutor(plan.concurrency, "caller") as callers:
        return sum(callers.map(call, range(plan.num_requests)))


def _prompts(plan: LoadPlan, tokenizer: Tokenizer) -> list[str]:
    """Make prompts of about the planned size.

    They differ, so that a prefix cache saves only the chat template.
    """
    random = Random(plan.seed + 1)  # noqa: S311  # see above
    sample = " ".join(random.choices(_WORDS, k=1000))
    num_words = max(1, round(plan.prompt_tokens * 1000 / tokenizer.count_text(sample)))
    return [
        f"{index}: " + " ".join(random.choices(_WORDS, k=num_words)) for index in range(plan.num_requests)
    ]
