"""A job runs in segments: what each asks of the engine, and how the job goes on when it was too short."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from jobs.engines.capacity import Budget, Capacity, blocks_for
from jobs.scheduling.packing import Candidate, Running, shadow_of
from jobs.scheduling.prediction import PredictionPolicy, predict


@dataclass(frozen=True, slots=True)
class Segment:
    """What one request asks of the engine.

    Attributes:
        new_tokens: most tokens that it generates, at least 1.
        blocks: that it books, and the engine reserves: prompt, earlier output and new tokens.
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
    """The segment that goes on from `produced`, as long as its prediction; see `prediction.predict`.

    Args:
        capacity: of the engine.
        peers: outputs of ended jobs of the same tenant and template, in tokens, ascending.
        prompt_tokens: of the job.
        produced: tokens that it generated in earlier segments.
        max_tokens: what its caller allows in all.
        policy: what is weighed.
    """
    expected = predict(capacity, peers, prompt_tokens=prompt_tokens, produced=produced, policy=policy)
    held, left = prompt_tokens + produced, max_tokens - produced
    return whole_blocks(capacity, held_tokens=held, new_tokens=max(1, expected - produced), left=left)


def whole_blocks(capacity: Capacity, *, held_tokens: int, new_tokens: int, left: int) -> Segment:
    """A segment of so many new tokens, and what more fits its last block, up to what is left."""
    blocks = blocks_for(held_tokens + min(new_tokens, left), capacity.tokens_per_block)
    return Segment(min(left, blocks * capacity.tokens_per_block - held_tokens), blocks)


@dataclass(frozen=True, slots=True)
class Extension:
    """How a job that reached the end of its booking goes on.

    Attributes:
        blocks: that its booking grows by. 0 with nobody yielding: it waits in its place, its cache kept.
        yields: who must go back to the queue first: the job itself, or one cheaper to recompute.
    """

    blocks: int
    yields: UUID | None = None


def extend_or_yield(
    job: Running,
    others: Sequence[Running],
    budget: Budget,
    *,
    wanted_blocks: int,
    overtaken: Candidate | None = None,
) -> Extension:
    """The job grows by what it wants or by what is free, whichever is less; else it waits, or one yields.

    Waiting is cheap: another job will end and leave its blocks. Only when every job on the engine waits
    for blocks must one go back to the queue, so at least one job always goes on.

    Args:
        job: at the end of its booking, which it keeps; it may yield (`recompute_tokens` is set).
        others: the other reservations.
        budget: what the engine has free beside all bookings.
        wanted_blocks: that its next segment needs beyond its booking; at least 1.
        overtaken: the job that it overtook, if that still waits: growth must not postpone it.
    """
    room = budget.free_blocks
    if overtaken is not None:
        promised = _room_beside(overtaken, job, others, budget)
        if promised is None:
            return Extension(0, yields=job.job_id)
        room = min(room, promised)
    if room >= 1:
        return Extension(min(wanted_blocks, room))
    if any(each.is_going for each in others):
        return Extension(0)
    able = [
        (each.recompute_tokens, each.job_id) for each in (job, *others) if each.recompute_tokens is not None
    ]
    return Extension(0, yields=min(able)[1])


def _room_beside(waiting: Candidate, job: Running, others: Sequence[Running], budget: Budget) -> int | None:
    """Blocks that it may grow by without postponing the one it overtook; None: its end is waited for."""
    ended = Budget(budget.free_slots + 1, budget.free_blocks + job.blocks, idle=not others)
    beside = shadow_of(waiting, others, budget)
    enough = waiting.blocks <= budget.free_blocks + sum(each.blocks for each in others)
    if waiting.alone or not enough or beside.steps > shadow_of(waiting, others, ended).steps:
        return None
    return beside.free_blocks
