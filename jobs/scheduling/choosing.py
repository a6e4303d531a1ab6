"""The choice among candidates on an engine, and the engine's load as jobs start and end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from jobs.queries import QueuedJob
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.packing import Choice, Packer, PackingPolicy, Running, choose
from jobs.scheduling.prefixes.engine_prefixes import EnginePrefixes
from jobs.scheduling.prefixes.followers import Family, Reader, Reuse, Sharer, choose_sharer, postponement
from jobs.scheduling.prefixes.prefix_replay import Guest, Overtaking
from jobs.scheduling.ranking import Ranked, charge_of, prompt_charge_of
from jobs.starting import Start
from jobs.states import Lane
from jobs.transitions import Lease


class Postponed(NamedTuple):
    """A job that followers have overtaken for so many steps in all."""

    job_id: UUID
    steps: float


@dataclass(frozen=True, slots=True)
class ChosenJob:
    """A candidate that may start, and what its claim needs.

    Attributes:
        ranked: the candidate.
        lease: the fence that it will have.
        overtakes: a better ranked job that its growth must not postpone.
        reuse: what the engine has of its prompt.
        family: with which it shares what it reads; None: it has none, or reads what another one has, into
            blocks of its own.
        postponed: the job that it overtakes as a follower.
    """

    ranked: Ranked
    lease: Lease
    overtakes: UUID | None
    reuse: Reuse
    family: Family | None
    postponed: Postponed | None

    def guest(self) -> Guest:
        """Describe it as a running job, for its family if it has one."""
        job, size, reader = self.ranked.job, self.ranked.size, None
        if self.family is not None:
            reader = Reader(
                self.family,
                job.id,
                job.text_id,
                size.blocks,
                has_read=False,
                rank=job.rank,
                prompt_tokens=job.prompt_tokens,
            )
        return Guest(reader, size.blocks, size.output_tokens)

    def overtaking(self) -> Overtaking | None:
        """Tell which job it postpones as a follower."""
        size = self.ranked.size
        likely_tokens = size.output_tokens - size.unlikely_tokens
        return Overtaking(self.postponed.job_id, likely_tokens) if self.postponed else None

    def start(self) -> Start:
        """Describe how it starts."""
        job, size = self.ranked.job, self.ranked.size
        return Start(
            self.lease,
            job,
            blocks=size.blocks,
            output_tokens=size.output_tokens,
            overtakes=self.overtakes,
            alone=self.ranked.candidate.alone,
            charge=charge_of(job, size, reused_tokens=self.reuse.tokens),
            charged_prompt=prompt_charge_of(job, reused_tokens=self.reuse.tokens),
            shared_blocks=self.reuse.blocks,
            anchor=self.reuse.anchor,
            family=None if self.family is None else self.family.digest,
            postponed_id=self.postponed.job_id if self.postponed else None,
            postponed_steps=self.postponed.steps if self.postponed else None,
        )


def choose_ranked(
    candidates: Sequence[Ranked], load: EngineLoad, policy: PackingPolicy, known: EnginePrefixes | None
) -> Choice:
    """Choose the candidate to start now.

    Args:
        candidates: in rank order.
        load: of the engine.
        policy: of the packing.
        known: what the engine has of prompts; None: it reuses none.
    """
    running, max_batch_size = list(load.running.values()), load.capacity.max_batch_size
    if known is None or not may_share([each.job for each in candidates], known):
        every = [each.candidate for each in candidates]
        return choose(every, running, load.budget, max_batch_size=max_batch_size, policy=policy)
    return choose_sharer(
        [_sharer(each, known) for each in candidates],
        running,
        load.budget,
        postponed=known.replay.postponed(),
        max_batch_size=max_batch_size,
        policy=policy,
    )


class Choices:
    """Chooses candidates of an engine one after the other, each as if those before it had started.

    Attributes:
        left: candidates that have not started, by job, in rank order.
    """

    def __init__(
        self,
        candidates: Sequence[Ranked],
        load: EngineLoad,
        policy: PackingPolicy,
        known: EnginePrefixes | None,
    ) -> None:
        """Start with what `choose_ranked` takes."""
        self.left = {each.job.id: each for each in candidates}
        self._load, self._policy, self._known = load, policy, known
        self._packer: Packer | None = None
        # A job that begins like no other makes none share.
        if known is None or not may_share([each.job for each in candidates], known):
            self._packer = Packer(
                [each.candidate for each in candidates],
                list(load.running.values()),
                load.budget,
                max_batch_size=load.capacity.max_batch_size,
                policy=policy,
            )

    def choose(self) -> tuple[Ranked, Choice] | None:
        """Choose the candidate to start next; None: none may."""
        if self._packer is not None:
            choice = self._packer.choose()
        else:
            choice = choose_ranked(list(self.left.values()), self._load, self._policy, self._known)
        return None if choice.start is None else (self.left[choice.start], choice)

    def start(self, chosen: Ranked, lease: Lease, reuse: Reuse) -> None:
        """Let the job run, which was chosen just now."""
        del self.left[chosen.job.id]
        if self._packer is not None:
            self._packer.start(chosen.job.id)
        else:
            self._load = with_started(self._load, chosen, lease, reuse)


def may_share(jobs: Sequence[QueuedJob], known: EnginePrefixes) -> bool:
    """Return True if any of these begins like another one, or with what the engine has or reads."""
    families = [found for job in jobs if (found := known.family_of(job)) is not None]
    return len(set(families)) < len(families) or any(known.concerns(job) for job in jobs)


def note_start(
    chosen: Ranked,
    candidates: Iterable[Ranked],
    load: EngineLoad,
    policy: PackingPolicy,
    known: EnginePrefixes | None,
) -> tuple[Reuse, Postponed | None]:
    """Note that one of the candidates starts; return what it reuses, and the job that it postpones."""
    if known is None:
        return Reuse(), None
    reuse, postponed = known.reuse(chosen.job), None
    if reuse.tokens:
        queue = [_sharer(each, known) for each in candidates]
        size = load.capacity.max_batch_size
        overtaken = postponement(_sharer(chosen, known), queue, max_batch_size=size, policy=policy)
        if overtaken is not None:
            postponed = Postponed(overtaken[0], known.replay.postpone(*overtaken))
    known.note_started(chosen.job, num_charged=charge_of(chosen.job, chosen.size, reused_tokens=reuse.tokens))
    return reuse, postponed


def _sharer(ranked: Ranked, known: EnginePrefixes) -> Sharer:
    """Describe a candidate with what the engine has of its prompt."""
    job = ranked.job
    charged = known.charged.get(job.tenant_id, 0)
    return Sharer(
        ranked.candidate,
        tenant=job.tenant_id,
        priority=ranked.priority,
        family=known.family_of(job),
        lead=ranked.account.served + charged / ranked.account.weight,
        weight=ranked.account.weight,
        reuse=known.reuse(job),
        is_waiting=(job.choice > 0 or ranked.candidate.lane is Lane.BATCH) and known.is_waiting(job),
        is_credited=known.replay.is_credited,
        unlikely_tokens=ranked.size.unlikely_tokens,
    )


def without(load: EngineLoad, lease_id: UUID) -> EngineLoad:
    """Return the engine's load once this job has ended."""
    rest = load.running.copy()
    budget = replace(
        load.budget,
        free_slots=load.budget.free_slots + 1,
        free_blocks=load.budget.free_blocks + rest.pop(lease_id).blocks,
        idle=not rest,
    )
    return replace(load, running=rest, budget=budget)


def emptied(load: EngineLoad) -> EngineLoad:
    """Return the engine's load once all its jobs have ended."""
    budget = replace(
        load.budget,
        free_slots=load.budget.free_slots + len(load.running),
        free_blocks=load.budget.free_blocks + sum(each.blocks for each in load.running.values()),
        idle=True,
    )
    return replace(load, running={}, budget=budget)


def with_started(load: EngineLoad, chosen: Ranked, lease: Lease, reuse: Reuse) -> EngineLoad:
    """Return the engine's load once this job has started."""
    candidate = chosen.candidate
    own_blocks = candidate.blocks - reuse.blocks
    started = Running(
        candidate.job_id,
        own_blocks,
        candidate.steps,
        lane=candidate.lane,
        is_whole=chosen.job.is_whole,
        recompute_tokens=None if chosen.job.num_yields or chosen.job.is_whole else chosen.job.prompt_tokens,
    )
    budget = replace(
        load.budget,
        free_slots=0 if candidate.alone else load.budget.free_slots - 1,
        free_blocks=load.budget.free_blocks - own_blocks,
        idle=False,
    )
    return replace(load, running={**load.running, lease.lease_id: started}, budget=budget)
