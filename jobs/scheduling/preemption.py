"""Which batch jobs make room for an interactive one: pure arithmetic."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from jobs.engines.capacity import Budget
from jobs.scheduling.packing import Candidate, PackingPolicy, Reserved, fits, may_join
from jobs.states import Lane


def choose_preemptions(
    waiting: Candidate,
    reserved: Sequence[Reserved],
    budget: Budget,
    *,
    max_batch_size: int,
    policy: PackingPolicy,
    batch_waits: bool,
) -> list[UUID]:
    """Choose the jobs that must leave so that this one may start.

    The cheapest to read again leave first, and no more than needed. Those in the waiting room cost nothing,
    and the engine would give them the next slot. A job that has a slot stays until it has read its prompt and
    generated `policy.preempt_after` tokens, since otherwise it read its prompt in vain, and also after
    `policy.max_preemptions`, so that it finishes.

    Args:
        waiting: an interactive job.
        reserved: every reservation on the engine, including draining ones.
        budget: what the engine has free.
        max_batch_size: slots of the engine.
        policy: what the packing may do to a job that runs.
        batch_waits: batch jobs are queued; then interactive ones may not hold all slots.

    Returns:
        No job if it will soon fit anyway, or would not fit even then.
    """
    if batch_waits and not may_join(waiting.lane, reserved, max_batch_size, policy):
        return []
    slots = budget.without_waiting_room()
    room = _without(slots, [each for each in reserved if each.is_leaving], reserved)
    if fits(waiting, room):
        return []
    able = sorted(
        (each for each in reserved if _may_be_preempted(each, policy)),
        key=lambda each: (not each.waits, _cost(each), each.job_id),
    )
    leaving: list[Reserved] = []
    for each in able:
        leaving.append(each)
        if fits(waiting, _without(room, leaving, reserved)):
            break
    else:
        return _leave_waiting_room(waiting, able, room, reserved)
    for each in list(leaving[:-1]):  # a cheap one was not enough; a dearer one may be, without it
        others = [other for other in leaving if other is not each]
        if fits(waiting, _without(room, others, reserved)):
            leaving = others
    return [each.job_id for each in leaving]


def _leave_waiting_room(
    waiting: Candidate, able: Sequence[Reserved], room: Budget, reserved: Sequence[Reserved]
) -> list[UUID]:
    """Return the jobs in the waiting room if the next slot is this job's once they have left."""
    leaving = [each for each in able if each.waits]
    left = _without(room, leaving, reserved)
    is_next = fits(waiting, replace(left, free_slots=left.free_slots + 1))
    return [each.job_id for each in leaving] if is_next else []


def _cost(job: Reserved) -> int:
    """Return the tokens to read again if it leaves: at least its prompt if it may not yield."""
    return job.prompt_tokens if job.recompute_tokens is None else job.recompute_tokens


def _may_be_preempted(job: Reserved, policy: PackingPolicy) -> bool:
    has_paid = job.new_tokens >= policy.preempt_after and job.num_preemptions < policy.max_preemptions
    is_untouched = job.waits and not job.has_read
    is_movable = not job.is_whole and (has_paid or is_untouched)
    return job.lane is Lane.BATCH and not job.is_leaving and is_movable


def _without(budget: Budget, leaving: Sequence[Reserved], reserved: Sequence[Reserved]) -> Budget:
    """Return what is free once these jobs have left."""
    return replace(
        budget,
        free_slots=budget.free_slots + len(leaving),
        free_blocks=budget.free_blocks + sum(each.blocks for each in leaving),
        idle=budget.idle or len(leaving) == len(reserved),
    )
