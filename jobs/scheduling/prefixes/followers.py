"""Jobs that begin with what the engine has just read go first: pure arithmetic.

Jobs of a family begin alike for the most part, so one of them is the reader, the first that fits, and later
ones follow it: they wait while it reads, and then start before others of their tenant. Where only ended jobs
have read the document, the first follower reads what the cache has lost. Everything else is packed as ever.

What bounds this: no job waits for a later reader. Peers have no order among them. Other followers overtake
their tenant's first job only for as long as reading their document again would take. And a tenant's followers
go first only while it is ahead of its share by no more than what it has just paid for.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from jobs.engines.capacity import ITERATION_TOKENS, Budget
from jobs.scheduling.packing import (
    Candidate,
    Choice,
    PackingPolicy,
    Running,
    are_peers,
    choose,
    fits,
    may_join,
)
from jobs.scheduling.prediction import PredictionPolicy
from jobs.states import Lane

# Steps that reading one token again takes.
_READ_STEPS: Final = PredictionPolicy().reread_steps


class Family(NamedTuple):
    """A tenant's prompts that begin alike for the most part; see `prompts.prefixes.family`."""

    tenant_id: UUID
    digest: bytes


@dataclass(frozen=True, slots=True)
class Reader:
    """A running job of a family.

    Attributes:
        family: of the job.
        job_id: a lower one is older.
        text_id: its prompt.
        blocks: that it reserves, shared ones included.
        has_read: its whole prompt is in the cache, and stays there while it runs.
        rank: of the job; a higher one goes first.
        prompt_tokens: of its prompt.
    """

    family: Family
    job_id: UUID
    text_id: UUID
    blocks: int
    has_read: bool
    rank: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reuse:
    """What of a queued job's prompt the engine has.

    Attributes:
        tokens: of the prompt's beginning.
        blocks: full blocks of them that are certain to stay, as a running job refers to them too.
        anchor: the lease of such a job. None: there is none, and `blocks` is 0.
    """

    tokens: int = 0
    blocks: int = 0
    anchor: UUID | None = None


@dataclass(frozen=True, slots=True)
class Sharer:
    """A queued job.

    Attributes:
        candidate: as the packing sees it if the engine has nothing of its prompt.
        tenant: its owner.
        priority: orders the jobs of a tenant; the higher goes first.
        family: None: it begins like no other.
        lead: what its tenant was served, in tokens divided by its weight.
        weight: of its tenant.
        reuse: what the engine has of its prompt.
        is_waiting: an earlier job is just reading what it begins with.
        is_credited: the engine starts it without room for what it shares.
        unlikely_tokens: of the output that it reserves, those that half of its peers did not need.
    """

    candidate: Candidate
    tenant: Hashable
    priority: int = 0
    family: Hashable = None
    lead: float = 0.0
    weight: float = 1.0
    reuse: Reuse = field(default=Reuse())
    is_waiting: bool = False
    is_credited: bool = False
    unlikely_tokens: int = 0

    def sized(self) -> Candidate:
        """Return the candidate with what it needs at its start, and less to read."""
        return replace(
            self.candidate,
            credited_blocks=self.reuse.blocks if self.is_credited else 0,
            steps=self.candidate.steps - self.reuse.tokens // ITERATION_TOKENS,
        )


def choose_sharer(
    queue: Sequence[Sharer],
    running: Sequence[Running],
    budget: Budget,
    *,
    postponed: Mapping[UUID, float],
    max_batch_size: int,
    policy: PackingPolicy,
) -> Choice:
    """Choose the largest follower that fits and may go first, or what the packing chooses among all.

    Args:
        queue: queued jobs in rank order, as for `packing.choose`.
        running: every reservation on the engine.
        budget: what the engine has free.
        postponed: for how many steps followers overtook a job so far, by its id.
        max_batch_size: slots of the engine.
        policy: of the packing.
    """
    kept = _one_reader_each([each for each in queue if not each.is_waiting], budget)
    first = _going_first(kept, running, postponed, max_batch_size=max_batch_size, policy=policy)
    left = [each for each in first if each.reuse.anchor is None]
    # What running jobs have stays anyway; what ended ones left may go.
    for some in (left, first):
        peers = [replace(each.sized(), waited=timedelta(0), group=None) for each in some]
        choice = choose(peers, running, budget, max_batch_size=max_batch_size, policy=policy)
        if choice.start is not None:
            return choice
    if running:  # until one of them ends
        kept_blocks = {each.family: each.candidate.blocks for each in left}
        budget = replace(budget, free_blocks=max(0, budget.free_blocks - sum(kept_blocks.values())))
    every = [each.sized() for each in kept]
    return choose(every, running, budget, max_batch_size=max_batch_size, policy=policy)


def _one_reader_each(queue: Sequence[Sharer], budget: Budget) -> list[Sharer]:
    """Leave out batch jobs that an earlier one, which fits now, can read for.

    Those whose document a running job certainly has need no reader.
    """
    kept, reading = [], set[Hashable]()
    for each in queue:
        needs_reader = each.family is not None and each.reuse.anchor is None
        if needs_reader and each.candidate.lane is Lane.BATCH:
            if each.family in reading:
                continue
            if fits(each.candidate, budget):
                reading.add(each.family)
        kept.append(each)
    return kept


def postponement(
    start: Sharer, queue: Sequence[Sharer], *, max_batch_size: int, policy: PackingPolicy
) -> tuple[UUID, float] | None:
    """Return which job a start postpones, and for how many steps; None if it overtakes none but peers.

    Args:
        start: the job that starts.
        queue: queued jobs in rank order, the one that starts among them.
        max_batch_size: slots of the engine.
        policy: of the packing.
    """
    head = _heads([each for each in queue if not each.is_waiting]).get(start.tenant)
    if head is None or not start.reuse.tokens or are_peers(head.candidate, start.candidate, policy):
        return None
    return head.candidate.job_id, (start.sized().steps - start.unlikely_tokens) / max_batch_size


def _going_first(
    kept: Sequence[Sharer],
    running: Sequence[Running],
    postponed: Mapping[UUID, float],
    *,
    max_batch_size: int,
    policy: PackingPolicy,
) -> list[Sharer]:
    """Return the followers that may start before others; none while an interactive job may start."""
    interactive = any(each.candidate.lane is Lane.INTERACTIVE for each in kept)
    heads = _heads(kept)
    if not heads or (interactive and may_join(Lane.INTERACTIVE, running, max_batch_size, policy)):
        return []
    next_tenant = next(iter(heads.values()))

    def may_go(each: Sharer) -> bool:
        if not each.reuse.tokens or each.candidate.lane is not Lane.BATCH or each.candidate.alone:
            return False
        head = heads[each.tenant]
        overtaken = postponed.get(head.candidate.job_id, 0.0)
        return (
            each.priority >= head.priority
            and (each.lead - next_tenant.lead) * each.weight <= each.reuse.tokens
            and (
                are_peers(head.candidate, each.candidate, policy)
                or overtaken < each.reuse.tokens * _READ_STEPS
            )
        )

    return [each for each in kept if may_go(each)]


def _heads(kept: Sequence[Sharer]) -> dict[Hashable, Sharer]:
    """Return each tenant's first batch job, in rank order."""
    found: dict[Hashable, Sharer] = {}
    for each in kept:
        if each.candidate.lane is Lane.BATCH:
            found.setdefault(each.tenant, each)
    return found
