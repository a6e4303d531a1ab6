"""Where the time of a run went: the steps of the model, and what became of each job when."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from bench.stand.contenders import Span
from bench.stand.documents import Prompt
from bench.stand.stand import Stand
from bench.stand.trace import Request

_LONG_READ = 1024  # tokens of a step that reads more than the questions' own
_JOBS = """
    SELECT replace(attempts.lease_id::text, '-', ''), attempts.cached_tokens,
        extract(epoch FROM clock_timestamp() - attempts.started_at)::float8,
        extract(epoch FROM clock_timestamp() - attempts.first_token_at)::float8,
        extract(epoch FROM clock_timestamp() - attempts.ended_at)::float8
    FROM jobs JOIN attempts ON attempts.job_id = jobs.id ORDER BY jobs.id
"""


class Step(NamedTuple):
    """One step of the model, as the engine's trace has it (`triton/transformers/tensorrt_llm/1/steps.py`)."""

    began: float
    prepared: float
    ended: float
    read_tokens: int
    num_prompts: int
    num_answers: int
    held_tokens: int

    @property
    def seconds(self) -> float:
        """Its length, choosing what runs included."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job; times are seconds after the start of all.

    Attributes:
        document: that it asks about.
        cached_tokens: of its prompt, that the engine had.
        claimed: it left the queue.
        came: it reached the engine.
        began: the engine started it.
        first: its first token was known to the worker.
        left: its slot was free.
        stored: its result was in its row.
    """

    document: int | None
    cached_tokens: int | None
    claimed: float
    came: float
    began: float
    first: float
    left: float
    stored: float


def read_steps(path: Path, span: Span) -> list[Step]:
    """Read the steps that began within the span."""
    lines = path.read_text().splitlines() if path.exists() else []
    steps = (Step(*json.loads(line)) for line in lines)
    return [step for step in steps if span.began <= step.began <= span.ended]


def phases(steps: Sequence[Step], span: Span) -> dict[str, float]:
    """Divide the span into steps that read documents, steps that only generate, and no step at all."""
    reading = [step for step in steps if step.read_tokens >= _LONG_READ]
    answering = [step for step in steps if step.read_tokens < _LONG_READ]
    found = {
        "read_tokens": sum(step.read_tokens for step in steps),
        "reading_steps": len(reading),
        "reading_s": sum(step.seconds for step in reading),
        "answering_steps": len(answering),
        "answering_s": sum(step.seconds for step in answering),
        "idle_s": span.seconds - sum(step.seconds for step in steps),
        "preparing_s": sum(step.prepared - step.began for step in steps),
    }
    if answering:
        found["answering_step_ms"] = 1000 * median(step.seconds for step in answering)
        found["answering_slots"] = fmean(step.num_prompts + step.num_answers for step in answering)
    return {name: round(value, 2) for name, value in found.items()}


def job_runs(
    stand: Stand, prompts: Sequence[Prompt], requests: Sequence[Request], span: Span
) -> list[JobRun]:
    """Put together what the product's tables and the engine's trace say of each job, in order of claims.

    The prompts are those of all jobs in the tables, in order of submission.
    """
    of_engine = {each.request_id.replace("-", ""): each for each in requests}
    rows = stand.ledger.database.execute(_JOBS).fetchall()
    now = time.monotonic()
    found = []
    for prompt, (lease, cached, claimed, first, ended) in zip(prompts, rows, strict=True):
        request = of_engine[lease]
        moments = (now - claimed, request.came, request.began, now - first, request.ended, now - ended)
        found.append(JobRun(prompt.spec.document, cached, *(round(each - span.began, 3) for each in moments)))
    return sorted(found, key=lambda each: each.claimed)
