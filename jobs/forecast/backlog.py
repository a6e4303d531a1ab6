"""How many queued jobs precede one, and how much work they are: counted rarely, looked up often."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.forecast.engine_speed import reading_work
from jobs.models.tenant import HALTED_TENANTS
from jobs.states import Lane

# Each tenant's first jobs are known one by one; of those after them, one in every `_EVERY`.
_EXACT: Final = 1000
_EVERY: Final = 256
# Uses only columns of the index before the join: counts 200,000 jobs in a quarter of a second.
_MARKS: Final = text(f"""
    SELECT place.lane, place.tenant_id, place.rank, place.id, place.number, jobs.prompt_tokens, tenants.weight
    FROM (
        SELECT lane, tenant_id, rank, id,
            row_number() OVER (PARTITION BY lane, tenant_id ORDER BY rank DESC, id) AS number
        FROM jobs WHERE state = 'queued' AND model = :model AND tenant_id <> ALL ({HALTED_TENANTS})
    ) AS place
    JOIN jobs ON jobs.id = place.id
    JOIN tenants ON tenants.id = place.tenant_id
    WHERE place.number <= :exact OR place.number % :every = 0
    ORDER BY place.lane, place.tenant_id, place.number
""")  # noqa: S608  # built from constants


class SampledJob(NamedTuple):
    """A queued job whose position in its tenant's queue is known; the first is number 1."""

    lane: str
    tenant_id: UUID
    rank: int
    id: UUID
    number: int
    prompt_tokens: int
    weight: float


@dataclass(frozen=True, slots=True)
class WorkAhead:
    """What precedes a job.

    Attributes:
        num_jobs: that rank before it.
        reading: the work of their prompts, in units of `engine_speed.reading_work`.
    """

    num_jobs: float
    reading: float

    def __add__(self, other: "WorkAhead") -> "WorkAhead":
        return WorkAhead(self.num_jobs + other.num_jobs, self.reading + other.reading)


NOTHING: Final = WorkAhead(0, 0)


@dataclass(slots=True)
class _Line:
    """One tenant's queue in one lane.

    Attributes:
        weight: of the tenant.
        keys: of the samples, in the tenant's own order.
        totals: up to and including each sample.
    """

    weight: float
    keys: list[tuple[int, UUID]] = field(default_factory=list)
    totals: list[WorkAhead] = field(default_factory=list)

    def add(self, sample: SampledJob) -> None:
        """Add the next sample; assumes that the jobs between it and the last are like it."""
        before = self.totals[-1] if self.totals else NOTHING
        num_new = sample.number - before.num_jobs
        self.keys.append((-sample.rank, sample.id))
        self.totals.append(before + WorkAhead(num_new, num_new * reading_work(sample.prompt_tokens)))

    def before(self, key: tuple[int, UUID]) -> WorkAhead:
        """Find what precedes this job of the tenant; interpolates by id between two samples."""
        found = bisect_left(self.keys, key)
        if not found:
            return NOTHING
        low = self.totals[found - 1]
        if found == len(self.keys):
            return low
        gap = self.totals[found].num_jobs - low.num_jobs - 1
        start, end = self.keys[found - 1][1].int, self.keys[found][1].int
        part = (key[1].int - start) / (end - start) if self.keys[found - 1][0] == key[0] else 0.0
        return self.first(low.num_jobs + round(gap * min(1.0, max(0.0, part))))

    def first(self, num_jobs: float) -> WorkAhead:
        """Sum up the first `num_jobs` jobs, or all if there are fewer."""
        place = bisect_right(self.totals, num_jobs, key=lambda each: each.num_jobs)
        low = self.totals[place - 1] if place else NOTHING
        if place == len(self.totals):
            return low
        high = self.totals[place]
        part = (num_jobs - low.num_jobs) / (high.num_jobs - low.num_jobs)
        return low + WorkAhead(num_jobs - low.num_jobs, part * (high.reading - low.reading))


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The queue of one model at the time of the count."""

    lines: Mapping[tuple[Lane, UUID], _Line]

    def ahead(self, job_id: UUID, *, lane: Lane, tenant_id: UUID, rank: int) -> WorkAhead:
        """Estimate what starts before this job: its tenant's jobs, and others by weight.

        Exact for a tenant's first thousand jobs, within a few hundred after them. Assumes that other tenants'
        jobs have the same size; the interactive lane goes before the batch lane.
        """
        own = self.lines.get((lane, tenant_id))
        found = own.before((-rank, job_id)) if own else NOTHING
        per_weight = found.num_jobs / own.weight if own else 0.0
        for (other_lane, other_tenant), line in self.lines.items():
            if lane is Lane.BATCH and other_lane is Lane.INTERACTIVE:
                found += line.totals[-1]
            elif other_lane is lane and other_tenant != tenant_id:
                found += line.first(per_weight * line.weight)
        return found


def count(session: Session, model: str) -> QueueDepth:
    """Count the queue of this model as it is now, without tenants whose queues are halted."""
    rows = session.execute(_MARKS, {"model": model, "exact": _EXACT, "every": _EVERY})
    return of(SampledJob(*row) for row in rows)


def of(samples: Iterable[SampledJob]) -> QueueDepth:
    """Build the queue from samples in order of lane, tenant and number."""
    lines: dict[tuple[Lane, UUID], _Line] = {}
    for sample in samples:
        lines.setdefault((Lane(sample.lane), sample.tenant_id), _Line(sample.weight)).add(sample)
    return QueueDepth(lines)
