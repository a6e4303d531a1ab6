"""Why a job does not run yet, how many precede it, and about when it starts. Read-only, and an estimate."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean
from typing import Final
from uuid import UUID

from jobs.engines.capacity import Budget, Capacity, find_excess
from jobs.forecast.backlog import QueueDepth
from jobs.forecast.simulation import EngineState, RemainingTokens
from jobs.forecast.snapshot import QueueSnapshot
from jobs.forecast.start_times import Forecast, forecast, later_s
from jobs.models import Job
from jobs.scheduling.queue import head_of
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
class QueueForecast:
    """One model's queue, simulated from one moment.

    Attributes:
        snapshot: the queue at that moment.
        forecast: what will happen.
        positions: of the jobs that will start within the horizon.
        holds: why the next jobs wait.
        mean_tokens: that a job of the queue is expected to generate.
    """

    snapshot: QueueSnapshot
    forecast: Forecast
    positions: Mapping[UUID, int]
    holds: Mapping[UUID, WaitReason]
    mean_tokens: float


def forecast_queue(snapshot: QueueSnapshot, policy: ClaimPolicy) -> QueueForecast:
    """Forecast from this snapshot; takes some 10 ms of computing."""

    def head_only(job_ids: Sequence[UUID]) -> Collection[UUID]:
        ranked = [snapshot.ranked[job_id] for job_id in job_ids]
        return {each.job_id for each in head_of(ranked, snapshot.jobs)}

    states = [state for _, state in snapshot.up]
    found = forecast(states, snapshot.lengths, policy=policy.packing, horizon=HORIZON, head_only=head_only)
    positions = {job_id: place for place, job_id in enumerate(found.starts, 1)}
    # If it waits for slots on one engine and for blocks on another, it is the blocks that are missing.
    holds = sorted(_holds(states, found), key=lambda each: each[1] is not WaitReason.SLOTS)
    expected = [snapshot.lengths[job_id].new_tokens for job_id in snapshot.ranked]
    return QueueForecast(
        snapshot, found, positions, dict(holds), mean_tokens=fmean(expected) if expected else 0.0
    )


def is_far_back(queue: QueueForecast, job: Job) -> bool:
    """Return True if this job's queue position needs the depth of the queue."""
    snapshot = queue.snapshot
    is_in_line = job.state == JobState.QUEUED and job.tenant_id not in snapshot.halted
    return is_in_line and job.id not in queue.positions and bool(snapshot.up)


def position_of(job: Job, queue: QueueForecast | None, depth: QueueDepth | None) -> QueuePosition | None:
    """Explain why an unfinished job waits, and find its queue position.

    Args:
        job: as it is now.
        queue: forecast of its model's queue, at most seconds old; only queued jobs need one.
        depth: of its model; only jobs for which `is_far_back` holds need it.

    Returns:
        None if the job runs or has ended.
    """
    if job.state in _UNRANKED:
        return QueuePosition(reason=_UNRANKED[job.state])
    if job.state != JobState.QUEUED or queue is None:
        return None
    snapshot, misfit = queue.snapshot, _misfit(job, queue.snapshot)
    if (halt := snapshot.halted.get(job.tenant_id)) is not None:
        return QueuePosition(reason=WaitReason.QUEUE_PAUSED, detail=f"queue {halt.in_words}")
    if job.run_after is not None and job.run_after > snapshot.now:
        starts_at = None if misfit else _first_start(queue, not_before=job.run_after)
        return QueuePosition(reason=WaitReason.RETRY_BACKOFF, estimated_start_at=starts_at)
    if misfit is not None:
        return misfit
    return _near(job.id, queue) if job.id in queue.positions else _far(job, queue, depth)


def _near(job_id: UUID, queue: QueueForecast) -> QueuePosition:
    """Describe the position of a job whose start was simulated."""
    return QueuePosition(
        position=queue.positions[job_id],
        reason=reason_of(job_id, queue),
        estimated_start_at=queue.snapshot.now + timedelta(seconds=queue.forecast.starts[job_id]),
    )


def _far(job: Job, queue: QueueForecast, depth: QueueDepth | None) -> QueuePosition:
    """Describe the position of a job beyond the horizon, or younger than the forecast."""
    snapshot, found = queue.snapshot, queue.forecast
    if job.id not in snapshot.ranked and not _has_waiting(queue) and _would_fit(job, snapshot, found.budgets):
        return QueuePosition(position=len(found.starts) + 1, estimated_start_at=snapshot.now)
    if depth is None:
        return QueuePosition(reason=reason_of(job.id, queue))
    ahead = depth.ahead(job.id, lane=Lane(job.lane), tenant_id=job.tenant_id, rank=job.rank)
    first = snapshot.up[0][1]
    writing = RemainingTokens(0, ahead.num_jobs * queue.mean_tokens)
    cost_s = ahead.reading * snapshot.reading_share * first.speed.read_s + first.cost_s(writing)
    seconds = later_s(found, cost_ahead_s=cost_s)
    return QueuePosition(
        position=max(round(ahead.num_jobs), len(found.starts)) + 1,
        reason=reason_of(job.id, queue),
        estimated_start_at=None if seconds is None else snapshot.now + timedelta(seconds=seconds),
    )


def reason_of(job_id: UUID, queue: QueueForecast) -> WaitReason | None:
    """Say why a queued job waits that some engine could hold; None: nothing holds it back."""
    if job_id in queue.forecast.at_once:
        return None
    if job_id in queue.forecast.kept_waiting:
        return WaitReason.RESERVATION
    return queue.holds.get(job_id, WaitReason.BEHIND)


def _holds(states: Sequence[EngineState], found: Forecast) -> Iterable[tuple[UUID, WaitReason]]:
    """Find what the next job to start lacks, and the first in rank that has a slot."""
    following = next((job_id for job_id in found.starts if job_id not in found.at_once), None)
    for state, budget in zip(states, found.budgets, strict=True):
        waiting = [each for each in state.candidates if each.job_id not in found.at_once]
        for each in waiting:
            if budget.free_slots < 1 and each.job_id == following:
                yield each.job_id, WaitReason.SLOTS
            elif budget.free_slots >= 1 and (each.job_id == following or each is waiting[0]):
                alone = each.alone and not budget.idle
                yield each.job_id, WaitReason.ALONE if alone else WaitReason.BLOCKS


def _misfit(job: Job, snapshot: QueueSnapshot) -> QueuePosition | None:
    """Explain why no engine could start the job, however empty; None: one could."""

    def holds(capacity: Capacity) -> bool:
        tokens = job.prompt_tokens or 0
        return find_excess(capacity, prompt_tokens=tokens, max_tokens=job.max_tokens) is None

    large_enough = [each for each in snapshot.registered if holds(each.capacity)]
    if any(each.is_up for each in large_enough):
        return None
    for each in large_enough:
        if each.halt is not None:
            detail = f"engine {each.name} {each.halt.in_words}"
            return QueuePosition(reason=WaitReason.ENGINE_PAUSED, detail=detail)
    is_down = large_enough or not snapshot.registered
    return QueuePosition(reason=WaitReason.ENGINE_DOWN if is_down else WaitReason.NO_ENGINE_FITS)


def _would_fit(job: Job, snapshot: QueueSnapshot, budgets: Sequence[Budget]) -> bool:
    """Return True if there is room even for all that it may need."""
    needed = (job.prompt_tokens or 0) + job.max_tokens
    return any(
        budget.free_slots >= 1 and needed <= capacity.tokens_in(budget.free_blocks)
        for (capacity, _), budget in zip(snapshot.up, budgets, strict=True)
    )


def _has_waiting(queue: QueueForecast) -> bool:
    return len(queue.forecast.at_once) < len(queue.snapshot.ranked)


def _first_start(queue: QueueForecast, *, not_before: datetime) -> datetime:
    """Find the first simulated start at this moment or later."""
    starts = (queue.snapshot.now + timedelta(seconds=each) for each in queue.forecast.starts.values())
    return min((each for each in starts if each >= not_before), default=not_before)
