"""The contenders: the product and its peers, each run from an open gate to its last stored result."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.figures import until
from bench.stand.documents import Prompt
from bench.stand.stand import Stand, job_line

PRODUCT = "longbatch"
POOL = "plain Celery pool of 4"
CLAIMING_POOL = "Celery pool of 4 with claims"
DIRECT = "direct client, all at once"
ONE_AT_A_TIME = "direct client, one at a time"
_LONGEST_S = 3000.0


@dataclass(frozen=True, slots=True)
class Span:
    """A contender's report.

    Attributes:
        began: monotonic time at which its gate opened.
        ended: monotonic time at which its last result was stored.
        tokens: output tokens of each job; 0 for a lost job.
        waits_s: of each job from its submission to its first token; empty if all were submitted at once.
        served: tokens by tenant while each of them had waiting jobs; empty for a single tenant.
    """

    began: float
    ended: float
    tokens: list[int]
    waits_s: list[float] = field(default_factory=list)
    served: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Makespan."""
        return self.ended - self.began


class Contender(Protocol):
    """A way to run a workload."""

    @property
    def admits(self) -> bool:
        """True if it promises never to ask more of the engine than it has."""

    def run(self, stand: Stand, prompts: Sequence[Prompt]) -> Span:
        """Run every job to its end."""


@dataclass(frozen=True, slots=True)
class Longbatch:
    """The product.

    Attributes:
        settings: of its inference worker, as environment variables.
        weights: of the tenants that the specs name; empty: all jobs belong to one tenant.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    admits: bool = True

    def run(self, stand: Stand, prompts: Sequence[Prompt]) -> Span:
        """Queue all jobs before the worker resumes, or submit each at its arrival time."""
        if not stand.keeps_jobs:
            stand.ledger.clear()
        with stand.worker(self.settings) as worker:
            if any(prompt.spec.arrives_at for prompt in prompts):
                return _arriving(stand, prompts)
            worker.freeze()
            ids = stand.submit(prompts)
            stand.ledger.assign(ids, prompts, self.weights)
            began = worker.thaw()
            until(lambda: not stand.ledger.unfinished(), seconds=_LONGEST_S, every=0.25)
            served = stand.ledger.served(self.weights) if self.weights else {}
            return Span(began, stand.ledger.last_end(ids), stand.ledger.outputs(ids), served=served)


def _arriving(stand: Stand, prompts: Sequence[Prompt]) -> Span:
    """Submit each job at its time, on its own connection so that none waits."""
    ids = [""] * len(prompts)
    sent = [0.0] * len(prompts)

    def send(place: int) -> None:
        sent[place] = time.monotonic()
        ids[place] = stand.post(job_line(prompts[place]))

    threads = []
    began = time.monotonic()
    for place, prompt in enumerate(prompts):
        time.sleep(max(0.0, began + prompt.spec.arrives_at - time.monotonic()))
        threads.append(threading.Thread(target=send, args=(place,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    until(lambda: not stand.ledger.unfinished(), seconds=_LONGEST_S, every=0.25)
    waits = [first - before for first, before in zip(stand.ledger.first_tokens(ids), sent, strict=True)]
    return Span(began, stand.ledger.last_end(ids), stand.ledger.outputs(ids), waits)
