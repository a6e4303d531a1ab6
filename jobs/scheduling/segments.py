"""A job runs in segments: what each asks of the engine, and how the job continues if one was too short."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from jobs.engines.capacity import Budget, Capacity
from jobs.scheduling.packing import Candidate, Reserved, shadow_of
from jobs.scheduling.prediction import PredictionPolicy, predict


@dataclass(frozen=True, slots=True)
class Segment:
    """What one request asks of the engine.

    Attributes:
        new_tokens: most tokens that it generates, at least 1.
        blocks: that it reserves, here and on the engine: prompt, earlier output and new tokens.
    """

    new_tokens: int
    blocks: int


def next_segment(
    capacity: Capacity,
    peers: Sequence[int],
    *,
    prompt_tokens: int,
    produced: int,
    max_tokens: int,
    policy: PredictionPolicy,
) -> Segment:
    """Size the segment that continues from `produced`; see `prediction.predict`.

    Args:
        capacity: of the engine.
        peers: outputs of ended jobs of the same tenant and template, in tokens, ascending.
        prompt_tokens: of the job.
        produced: tokens that it generated in earlier segments.
        max_tokens: what its caller allows in all.
        policy: the weights.
    """
    expected = predict(capacity, peers, prompt_tokens=prompt_tokens, produced=produced, policy=policy)
    held, left = prompt_tokens + produced, max_tokens - produced
    return whole_blocks(capacity, held_tokens=held, new_tokens=max(1, expected - produced), left=left)


def whole_blocks(capacity: Capacity, *, held_tokens: int, new_tokens: int, left: int) -> Segment:
    """Build a segment of `new_tokens`, and fill its last block up to what is left."""
    blocks = capacity.blocks_of(held_tokens + min(new_tokens, left))
    return Segment(min(left, capacity.tokens_in(blocks) - held_tokens), blocks)


@dataclass(frozen=True, slots=True)
class Growth:
    """How a job at the end of its reservation continues.

    Attributes:
        blocks: that its reservation grows by. 0 and no yield: it waits in its slot and keeps its cache.
        yields: the job that must first go back to the queue: this one, or one cheaper to recompute.
    """

    blocks: int
    yields: UUID | None = None


def extend_or_yield(
    job: Reserved,
    others: Sequence[Reserved],
    budget: Budget,
    *,
    wanted_blocks: int,
    overtaken: Candidate | None = None,
) -> Growth:
    """Grow the job by what it wants or what is free, or make it wait or one job yield.

    Waiting is cheap: another job will end and leave its blocks. Only if every job on the engine waits for
    blocks must one go back to the queue, so at least one job always continues.

    Args:
        job: at the end of its reservation, which it keeps; it may yield (`recompute_tokens` is set).
        others: the other reservations.
        budget: what the engine has free besides all reservations.
        wanted_blocks: that its next segment needs beyond its reservation; at least 1.
        overtaken: the job that it overtook, if that still waits: growth must not postpone it.
    """
    room = budget.free_blocks
    if overtaken is not None:
        promised = _room_without_delay(overtaken, job, others, budget)
        if promised is None:
            return Growth(0, yields=job.job_id)
        room = min(room, promised)
    if room >= 1:
        return Growth(min(wanted_blocks, room))
    if any(each.is_going for each in others):
        return Growth(0)
    able = [
        (each.recompute_tokens, each.job_id) for each in (job, *others) if each.recompute_tokens is not None
    ]
    return Growth(0, yields=min(able)[1])


def _room_without_delay(
    waiting: Candidate, job: Reserved, others: Sequence[Reserved], budget: Budget
) -> int | None:
    """Count the blocks that it may grow by without postponing the one it overtook.

    Returns:
        None if the overtaken job waits for this one's end.
    """
    ended = replace(
        budget,
        free_slots=budget.free_slots + 1,
        free_blocks=budget.free_blocks + job.blocks,
        idle=not others,
    )
    shadow = shadow_of(waiting, others, budget)
    enough = waiting.blocks <= budget.free_blocks + sum(each.blocks for each in others)
    if waiting.alone or not enough or shadow.steps > shadow_of(waiting, others, ended).steps:
        return None
    return shadow.free_blocks
