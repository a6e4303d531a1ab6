"""Runs contenders on one list, one after another, in front of one vLLM server."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from bench.figures import until
from bench.gpu.vllm import clients
from bench.gpu.vllm.gauges import Meter, load
from bench.gpu.vllm.lists import Listing
from bench.gpu.vllm.product import Product
from bench.gpu.vllm.record import Run, Setting, curve
from bench.stand.documents import Prompt

LONGBATCH: Final = "longbatch"
CLIENT: Final = "client"
POOL: Final = "pool"
BY_DOCUMENT: Final = "by-document"
OFFLINE: Final = "offline"
CONTENDERS: Final = {
    CLIENT: "an async client that sends everything at once, in the list's order",
    POOL: "a Celery-like pool: four requests at a time, in the list's order",
    BY_DOCUMENT: "like client, document by document: the best order by hand",
    LONGBATCH: "jobs submitted to Longbatch in bulk, in the list's order",
}
_WARM_UP_TOKENS: Final = 8
_WARM_UP_PROMPTS: Final = 64
_IDLE_S: Final = 60.0  # within which vLLM drops the requests of the contender before
_SETTLE_S: Final = 0.5  # until the gauges show the last end


class Measurement:
    """One server with its list.

    Attributes:
        prompts: in the list's order.
    """

    def __init__(
        self,
        engine: str,
        listing: Listing,
        *,
        prompts: Sequence[Prompt],
        setting: Setting,
        ready: Path,
        patience: float,
    ) -> None:
        self._engine = engine
        self._listing = listing
        self._setting = setting
        self._ready = ready
        self._patience = patience
        self._meter = Meter(engine)
        self.prompts = prompts

    def warm_up(self) -> None:
        """Load kernels and raise clocks with reversed prompts, of which nothing is in the cache later."""
        sized = sorted(self.prompts, key=lambda each: each.spec.prompt_tokens)
        chosen = [*sized[:_WARM_UP_PROMPTS], sized[-1]]
        clients.run(self._engine, [_backwards(each) for each in chosen])

    def run(self, contender: str) -> Run:
        """Run one contender from an empty prefix cache."""
        run = self._product if contender == LONGBATCH else self._client(contender)
        until(self._meter.is_idle, seconds=_IDLE_S)
        self._meter.forget_prompts()
        time.sleep(_SETTLE_S)
        before = self._meter.sample()
        with self._meter.sampling() as samples:
            began, ended, checks, more = run()
        time.sleep(_SETTLE_S)
        after = self._meter.sample()
        during = [each for each in samples if began <= each.at <= ended]
        specs = [each.spec for each in self.prompts]
        return Run(
            contender=contender,
            listing=str(self._listing),
            setting=self._setting,
            jobs=len(specs),
            prompt_tokens=sum(each.prompt_tokens for each in specs),
            output_tokens=sum(each.output_tokens for each in specs),
            seconds=round(ended - began, 2),
            counters=after.counters.since(before.counters),
            load=load(during, slots=self._setting.slots),
            checks=checks,
            more=more,
            curve=curve(during, began=began),
        )

    def _client(self, contender: str) -> Callable[[], tuple[float, float, dict[str, int], dict[str, Any]]]:
        at_once = {"at_once": clients.CELERY_POOL} if contender == POOL else {}
        prompts = self.prompts
        if contender == BY_DOCUMENT:
            prompts = sorted(prompts, key=lambda each: each.spec.document or 0)

        def run() -> tuple[float, float, dict[str, int], dict[str, Any]]:
            found = clients.run(self._engine, prompts, patience=self._patience, **at_once)
            checks = {
                "errors": sum(found.errors.values()),
                "wrong_length": found.wrong_length,
                "unfinished": found.unfinished,
            }
            return found.began, found.ended, checks, {"errors": found.errors} if found.errors else {}

        return run

    def _product(self) -> tuple[float, float, dict[str, int], dict[str, Any]]:
        found = Product(self._ready).run(self.prompts, patience=self._patience)
        names = ("lost", "twice", "wrong_length", "unfinished")
        values = asdict(found)
        more = {name: values[name] for name in ("submit_s", "first_claim_s", "attempts")}
        return found.began, found.ended, {name: values[name] for name in names}, more


def _backwards(prompt: Prompt) -> Prompt:
    """Reverse a prompt's words, mark included, so that its answer ends at the limit."""
    return replace(prompt, ids=prompt.ids[::-1].copy(), spec=replace(prompt.spec, max_tokens=_WARM_UP_TOKENS))
