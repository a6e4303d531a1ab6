"""Jobs that begin with what the engine has just read go first: pure arithmetic.

Jobs of a family begin alike for the most part, so one of them is the reader, the first that fits, and later
ones follow it: they wait while it reads, and then start before others of their tenant. Where only ended jobs
have read the document, the first follower reads what the cache has lost. Everything else is packed as ever.

What bounds this: no job waits for a later reader. The jobs of a cohort have no order. Other followers
overtake their tenant's first job only for as long as reading their document again would take. And a tenant's
followers go first only while it is ahead of its share by no more than what it has just paid for.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from jobs.engines.capacity import ITERATION_TOKENS, Budget
from jobs.scheduling.packing import (
    Candidate,
    Choice,
    PackingPolicy,
    Reserved,
    Reuse,
    choose,
    fits,
    in_cohort,
    may_join,
)
from jobs.scheduling.prediction import PredictionPolicy
from jobs.states import Lane

# Steps that reading one token again takes.
_READ_STEPS: Final = PredictionPolicy().reread_steps


def choose_follower(
    queue: Sequence[Candidate],
    reserved: Sequence[Reserved],
    budget: Budget,
    *,
    postponed: Mapping[UUID, float],
    max_batch_size: int,
    policy: PackingPolicy,
) -> Choice:
    """Choose the largest follower that fits and may go first, or what the packing chooses among all.

    Args:
        queue: queued jobs in rank order, as for `packing.choose`, each with what the engine has of it.
        reserved: every reservation on the engine.
        budget: what the engine has free.
        postponed: for how many steps followers postponed a job so far, by its id.
        max_batch_size: slots of the engine.
        policy: of the packing.
    """
    kept = _one_reader_each([each for each in queue if not each.is_waiting], budget)
    heads = _heads(kept)
    first = list[Candidate]()
    asking = any(each.lane is Lane.INTERACTIVE for each in kept)
    if not (asking and may_join(Lane.INTERACTIVE, reserved, max_batch_size, policy)):
        first = _going_first(kept, heads, postponed, policy)
    # What running jobs have stays anyway; what ended ones left may go.
    left = [each for each in first if each.reuse.anchor is None]
    for some in (left, first):
        cohort = [replace(each, waited=timedelta(0), group=None) for each in some]
        choice = choose(cohort, reserved, budget, max_batch_size=max_batch_size, policy=policy)
        if choice.start is not None:
            break
    else:
        if reserved:  # until one of them ends
            kept_blocks = {each.family: each.blocks for each in left}
            budget = replace(budget, free_blocks=max(0, budget.free_blocks - sum(kept_blocks.values())))
        choice = choose(kept, reserved, budget, max_batch_size=max_batch_size, policy=policy)
    if choice.start is None:
        return choice
    start = next(each for each in kept if each.job_id == choice.start)
    head = heads.get(start.tenant)
    if head is None or not start.reuse.tokens or in_cohort(head, start, policy):
        return choice
    return replace(choice, postpones=(head.job_id, (start.steps - start.unlikely_tokens) / max_batch_size))


def with_reuse(candidate: Candidate, reuse: Reuse, *, is_credited: bool) -> Candidate:
    """Return the candidate with what the engine has of its prompt, and what it needs then.

    Args:
        candidate: it, as if the engine had nothing.
        reuse: what it has.
        is_credited: the engine starts a request without room for blocks that it shares with a running one.
    """
    return replace(
        candidate,
        reuse=reuse,
        credited_blocks=reuse.blocks if is_credited else 0,
        steps=candidate.steps - reuse.tokens // ITERATION_TOKENS,
    )


def _one_reader_each(queue: Sequence[Candidate], budget: Budget) -> list[Candidate]:
    """Leave out batch jobs that an earlier one, which fits now, can read for.

    Those whose document a running job certainly has need no reader.
    """
    kept, reading = [], set[Hashable]()
    for each in queue:
        needs_reader = each.family is not None and each.reuse.anchor is None
        if needs_reader and each.lane is Lane.BATCH:
            if each.family in reading:
                continue
            if fits(each, budget):
                reading.add(each.family)
        kept.append(each)
    return kept


def _heads(kept: Sequence[Candidate]) -> dict[Hashable, Candidate]:
    """Return each tenant's first batch job, in rank order."""
    found: dict[Hashable, Candidate] = {}
    for each in kept:
        if each.lane is Lane.BATCH:
            found.setdefault(each.tenant, each)
    return found


def _going_first(
    kept: Sequence[Candidate],
    heads: Mapping[Hashable, Candidate],
    postponed: Mapping[UUID, float],
    policy: PackingPolicy,
) -> list[Candidate]:
    """Return the followers that may start before other batch jobs."""

    def may_go(each: Candidate) -> bool:
        if not each.reuse.tokens or each.lane is not Lane.BATCH or each.alone:
            return False
        head, next_tenant = heads[each.tenant], next(iter(heads.values()))
        return (
            each.priority >= head.priority
            and (each.lead - next_tenant.lead) * each.weight <= each.reuse.tokens
            and (
                in_cohort(head, each, policy)
                or postponed.get(head.job_id, 0.0) < each.reuse.tokens * _READ_STEPS
            )
        )

    return [each for each in kept if may_go(each)]
