"""How often an engine read each text that is asked, by its own trace, and what excuses a second time."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psycopg

from bench.stand import trace

# Of a prompt, more than its question and a part of a block: who computes more reads the text.
_MAX_TAIL = 400


class Text(NamedTuple):
    """A document, or a part of one."""

    summary_id: str
    chunk: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A request for which the engine computed a text, not only the question about it.

    Attributes:
        began: the machine's monotonic seconds.
        worker: that sent it: host and process id.
        is_whole: it was read to its end, so that others could reuse it.
        num_computed: tokens.
    """

    began: float
    worker: str
    is_whole: bool
    num_computed: int


@dataclass(frozen=True, slots=True)
class Reads:
    """What the engine read.

    Attributes:
        readings: of each text, in order.
        prompt_tokens: of all requests.
        computed_tokens: of these, those that the engine did not have.
        engine_deaths: when the engine was killed, in the machine's monotonic seconds.
    """

    readings: Mapping[Text, Sequence[Reading]]
    prompt_tokens: int
    computed_tokens: int
    engine_deaths: Sequence[float] = ()

    def again(self) -> list[tuple[Text, Reading, str]]:
        """Every reading of a text after its first one, with its excuse; without one, the excuse is empty."""
        return [
            (text, reading, self._excuse(before, reading))
            for text, found in self.readings.items()
            for before, reading in pairwise(found)
        ]

    def _excuse(self, before: Reading, reading: Reading) -> str:
        if any(before.began <= died <= reading.began for died in self.engine_deaths):
            return "its engine was killed"
        if before.worker == reading.worker:
            return ""
        return "its worker was killed" if before.is_whole else "its worker was killed while it was read"


def reads_of(
    database_url: str, path: Path, *, tokens_per_block: int, engine_deaths: Sequence[float] = ()
) -> Reads:
    """Match the requests in the engine's trace with the runs of jobs that ask texts.

    Every completed run is in the trace, else the trace is of another engine.
    """
    query = (
        "SELECT attempts.lease_id, attempts.worker, attempts.outcome, summary_nodes.summary_id, chunk"
        " FROM attempts JOIN summary_nodes USING (job_id) JOIN jobs ON jobs.id = job_id"
        " WHERE level = 0 AND task LIKE 'answer%'"
    )
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(query).fetchall()
    runs = {lease.hex: (worker, Text(str(summary), chunk)) for lease, worker, _, summary, chunk in rows}
    requests = trace.read(path, since=0, until=time.monotonic()).requests
    missing = {lease.hex for lease, _, outcome, *_ in rows if outcome == "completed"} - {
        each.request_id for each in requests
    }
    assert not missing, f"{len(missing)} completed runs are not in the engine's trace"
    begun = [each for each in requests if each.began > each.came and each.request_id in runs]
    return Reads(
        readings_of(begun, runs, tokens_per_block=tokens_per_block),
        prompt_tokens=sum(each.prompt_tokens for each in begun),
        computed_tokens=sum(_computed(each, tokens_per_block) for each in begun),
        engine_deaths=engine_deaths,
    )


def readings_of(
    requests: Iterable[trace.Request], runs: Mapping[str, tuple[str, Text]], *, tokens_per_block: int
) -> dict[Text, list[Reading]]:
    """Sort the requests that read a text by their text."""
    found = defaultdict[Text, list[Reading]](list)
    for request in sorted(requests, key=lambda each: each.began):
        computed = _computed(request, tokens_per_block)
        if computed > _MAX_TAIL:
            worker, text = runs[request.request_id]
            found[text].append(Reading(request.began, worker, request.generated > 0, computed))
    return dict(found)


def _computed(request: trace.Request, tokens_per_block: int) -> int:
    return request.prompt_tokens - request.reused_blocks * tokens_per_block
