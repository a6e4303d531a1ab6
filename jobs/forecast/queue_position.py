"""Why a job does not run yet, how many precede it, and about when it starts. Read-only, and an estimate."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean
from typing import Final
from uuid import UUID

from jobs.engines.capacity import Budget, Capacity, find_excess
from jobs.forecast.backlog import Depth
from jobs.forecast.simulation import Length, Outlook
from jobs.forecast.snapshot import View
from jobs.forecast.start_times import Forecast, forecast, later_s
from jobs.models import Job
from jobs.scheduling.ranking import head_of
from jobs.scheduling.sizing import ClaimPolicy
from jobs.states import JobState, Lane, WaitReason
from jobs.views import QueuePosition

# Starts to simulate; later ones are extrapolated.
HORIZON: Final = 128


_UNRANKED: Final[Mapping[str, WaitReason]] = {
    JobState.BLOCKED: WaitReason.DEPENDENCY,
    JobState.PREPARING: WaitReason.PREPARING,
}


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One model's queue, simulated from one moment.

    Attributes:
        view: that moment.
        found: what will happen.
        positions: of the jobs that will start within the horizon.
        holds: why the next jobs wait.
        mean_tokens: that a job of the queue is expected to generate.
    """

    view: View
    found: Forecast
    positions: Mapping[UUID, int]
    holds: Mapping[UUID, WaitReason]
    mean_tokens: float


def play(view: View, policy: ClaimPolicy) -> QueueSnapshot:
    """Forecast from this view; takes some 10 ms of computing."""

    def narrow(job_ids: Sequence[UUID]) -> Collection[UUID]:
        return {each.job.id for each in head_of([view.ranked[job_id] for job_id in job_ids])}

    outlooks = [outlook for _, outlook in view.up]
    found = forecast(outlooks, view.lengths, policy=policy.packing, horizon=HORIZON, narrow=narrow)
    positions = {job_id: place for place, job_id in enumerate(found.starts, 1)}
    # If it waits for slots on one engine and for blocks on another, it is the blocks that are missing.
    holds = sorted(_holds(outlooks, found), key=lambda each: each[1] is not WaitReason.SLOTS)
    expected = [view.lengths[job_id].new_tokens for job_id in view.ranked]
    return QueueSnapshot(
        view, found, positions, dict(holds), mean_tokens=fmean(expected) if expected else 0.0
    )


def is_far_back(snapshot: QueueSnapshot, job: Job) -> bool:
    """Return True if this job's queue position needs the depth of the queue."""
    return job.state == JobState.QUEUED and job.id not in snapshot.positions and bool(snapshot.view.up)


def explain(job: Job, snapshot: QueueSnapshot | None, depth: Depth | None) -> QueuePosition | None:
    """Explain why an unfinished job waits, and find its queue position.

    Args:
        job: as it is now.
        snapshot: of its model, at most seconds old; only queued jobs need one.
        depth: of its model; only jobs for which `is_far_back` holds need it.

    Returns:
        None if the job runs or has ended.
    """
    if job.state in _UNRANKED:
        return QueuePosition(reason=_UNRANKED[job.state])
    if job.state != JobState.QUEUED or snapshot is None:
        return None
    view, misfit = snapshot.view, _misfit(job, snapshot.view)
    if job.run_after is not None and job.run_after > view.now:
        starts_at = None if misfit else _first_start(snapshot, not_before=job.run_after)
        return QueuePosition(reason=WaitReason.RETRY_BACKOFF, estimated_start_at=starts_at)
    if misfit is not None:
        return QueuePosition(reason=misfit)
    return _near(job.id, snapshot) if job.id in snapshot.positions else _far(job, snapshot, depth)


def _near(job_id: UUID, snapshot: QueueSnapshot) -> QueuePosition:
    """Describe the position of a job whose start was simulated."""
    return QueuePosition(
        position=snapshot.positions[job_id],
        reason=_reason(job_id, snapshot),
        estimated_start_at=snapshot.view.now + timedelta(seconds=snapshot.found.starts[job_id]),
    )


def _far(job: Job, snapshot: QueueSnapshot, depth: Depth | None) -> QueuePosition:
    """Describe the position of a job beyond the horizon, or younger than the snapshot."""
    view, found = snapshot.view, snapshot.found
    if job.id not in view.ranked and not _has_waiting(snapshot) and _would_fit(job, view, found.budgets):
        return QueuePosition(position=len(found.starts) + 1, estimated_start_at=view.now)
    if depth is None:
        return QueuePosition(reason=_reason(job.id, snapshot))
    ahead = depth.ahead(job.id, lane=Lane(job.lane), tenant_id=job.tenant_id, rank=job.rank)
    first = view.up[0][1]
    writing = Length(0, ahead.num_jobs * snapshot.mean_tokens)
    cost_s = ahead.reading * first.speed.read_s + first.cost_s(writing)
    seconds = later_s(found, cost_ahead_s=cost_s)
    return QueuePosition(
        position=max(round(ahead.num_jobs), len(found.starts)) + 1,
        reason=_reason(job.id, snapshot),
        estimated_start_at=None if seconds is None else view.now + timedelta(seconds=seconds),
    )


def _reason(job_id: UUID, snapshot: QueueSnapshot) -> WaitReason | None:
    if job_id in snapshot.found.at_once:
        return None
    if job_id in snapshot.found.kept_waiting:
        return WaitReason.RESERVATION
    return snapshot.holds.get(job_id, WaitReason.BEHIND)


def _holds(outlooks: Sequence[Outlook], found: Forecast) -> Iterable[tuple[UUID, WaitReason]]:
    """Find what the next job to start lacks, and the first in rank that has a slot."""
    following = next((job_id for job_id in found.starts if job_id not in found.at_once), None)
    for outlook, budget in zip(outlooks, found.budgets, strict=True):
        waiting = [each for each in outlook.candidates if each.job_id not in found.at_once]
        for each in waiting:
            if budget.free_slots < 1 and each.job_id == following:
                yield each.job_id, WaitReason.SLOTS
            elif budget.free_slots >= 1 and (each.job_id == following or each is waiting[0]):
                alone = each.alone and not budget.idle
                yield each.job_id, WaitReason.ALONE if alone else WaitReason.BLOCKS


def _misfit(job: Job, view: View) -> WaitReason | None:
    """Find why no engine could start the job, however empty."""

    def holds(capacity: Capacity) -> bool:
        tokens = job.prompt_tokens or 0
        return find_excess(capacity, prompt_tokens=tokens, max_tokens=job.max_tokens) is None

    large_enough = [each for each in view.registered if holds(each.capacity)]
    if any(each.is_up for each in large_enough):
        return None
    return WaitReason.ENGINE_DOWN if large_enough or not view.registered else WaitReason.NO_ENGINE_FITS


def _would_fit(job: Job, view: View, budgets: Sequence[Budget]) -> bool:
    """Return True if there is room even for all that it may need."""
    needed = (job.prompt_tokens or 0) + job.max_tokens
    return any(
        budget.free_slots >= 1 and needed <= budget.free_blocks * capacity.tokens_per_block
        for (capacity, _), budget in zip(view.up, budgets, strict=True)
    )


def _has_waiting(snapshot: QueueSnapshot) -> bool:
    return len(snapshot.found.at_once) < len(snapshot.view.ranked)


def _first_start(snapshot: QueueSnapshot, *, not_before: datetime) -> datetime:
    """Find the first simulated start at this moment or later."""
    starts = (snapshot.view.now + timedelta(seconds=each) for each in snapshot.found.starts.values())
    return min((each for each in starts if each >= not_before), default=not_before)
