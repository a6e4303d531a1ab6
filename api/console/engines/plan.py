"""What is expected of an engine: when its jobs end, and which follow, by the forecast of its queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Final
from uuid import UUID

from api.console.engines.activity import Bar, EngineActivity
from jobs.forecast.queue_position import QueueForecast, reason_of
from jobs.states import WaitReason
from longbatch.waiting import WAIT_WORDS

# Jobs to come that a page shows of one engine.
_MOST: Final = 40
# What gets free is kept for the first job that waits for one of these.
_KEPT: Final = frozenset({WaitReason.BLOCKS, WaitReason.ALONE})


@dataclass(frozen=True, slots=True)
class NextJob:
    """A queued job that is expected to start on the engine.

    Attributes:
        is_kept: what gets free is kept for it: others start before it only if that does not postpone it.
        why: what it waits for, in words.
    """

    job_id: UUID
    tenant_id: UUID
    blocks: int
    starts_at: datetime
    ends_at: datetime
    is_kept: bool
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is expected of one engine.

    Attributes:
        ends: when its present jobs end, by id of the job.
        following: in the order of their starts.
    """

    ends: Mapping[UUID, datetime] = field(default_factory=dict)
    following: Sequence[NextJob] = ()

    def end_of(self, bar: Bar) -> float:
        """Return when the run ends, by the clock of timestamps; infinite if that is not known."""
        end = self.ends.get(bar.job_id)
        return inf if end is None else end.timestamp()


def plan_of(engine: EngineActivity, queue: QueueForecast | None) -> Plan:
    """Find in the forecast of the model's queue what concerns this engine."""
    if queue is None or engine.halt is not None or not engine.is_up:  # the forecast may be older
        return Plan()
    snapshot, found = queue.snapshot, queue.forecast
    names = [each.name for each in snapshot.registered if each.is_up]
    if engine.name not in names:
        return Plan()
    place = names.index(engine.name)

    def moment(seconds: float) -> datetime:
        # A forecast of years says nothing.
        return max(engine.at, snapshot.now + timedelta(seconds=min(seconds, 1e8)))

    held = {bar.job_id for bar in engine.held}
    begun = {bar.job_id for bar in engine.bars if bar.started_at >= snapshot.now} | held
    mine = [job_id for job_id in found.starts if found.places[job_id] == place and job_id not in begun]
    kept = next((job_id for job_id in mine if queue.holds.get(job_id) in _KEPT), None)
    following = [
        NextJob(
            job_id=job_id,
            tenant_id=snapshot.jobs[job_id].tenant_id,
            blocks=snapshot.ranked[job_id].blocks,
            starts_at=moment(found.starts[job_id]),
            ends_at=moment(found.ends.get(job_id, inf)),
            is_kept=job_id == kept,
            why=_why(job_id, queue, is_next=job_id == mine[0], has_slot=len(held) < engine.slots),
        )
        for job_id in mine[:_MOST]
    ]
    ends = {job_id: moment(found.ends[job_id]) for job_id in held if job_id in found.ends}
    return Plan(ends, following)


def _why(job_id: UUID, queue: QueueForecast, *, is_next: bool, has_slot: bool) -> str:
    reason = reason_of(job_id, queue)
    if reason is WaitReason.BEHIND and is_next and not has_slot:
        reason = WaitReason.SLOTS  # those that it was behind have started since the forecast
    return WAIT_WORDS[reason] if reason else "nothing holds it back"
