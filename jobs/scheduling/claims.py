"""The claim: one transaction that books slots and blocks and puts a job under a lease."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.database import database_now
from jobs.engines import reservations, served_tokens
from jobs.ids import uuid7
from jobs.models import Engine, Job, Reservation
from jobs.scheduling import candidates as queue_window
from jobs.scheduling import engine_load
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.packing import Choice, Running, choose
from jobs.scheduling.preemption import choose_preemptions
from jobs.scheduling.ranking import Ranked, Ranking, charged
from jobs.scheduling.sizing import ClaimPolicy, Sizer
from jobs.states import Lane
from jobs.transitions import Lease


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is ours to run.

    Attributes:
        lease: the fence for every later write.
        blocks: KV blocks booked for it.
        output_tokens: that the blocks cover beside the prompt, those of earlier runs included.
        job: its row at the claim; not tracked by any session.
    """

    lease: Lease
    blocks: int
    output_tokens: int
    job: Job


@dataclass(frozen=True, slots=True)
class FreedSlot:
    """A job whose request the engine has confirmed to be over; its end is not recorded yet.

    Attributes:
        lease_id: whose booking goes.
        produced: tokens that it has generated in all.
    """

    lease_id: UUID
    produced: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What `preview_claims` found a moment ago.

    Attributes:
        candidates: the head of the queue.
        text_ids: the prompts of jobs that would start next: now, or when one or all running jobs end.
    """

    candidates: Sequence[Ranked] = ()
    text_ids: Sequence[UUID] = ()


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one look at the queue came to.

    Attributes:
        claims: of the jobs that are running now.
        free_slots: that the engine has left.
        asked_for_room: batch jobs were asked to leave for an interactive one.
    """

    claims: Sequence[Claim] = ()
    free_slots: int = 0
    asked_for_room: bool = False


def claim(session: Session, engine_name: str, policy: ClaimPolicy) -> Claim | None:
    """The next job for this engine is running, its blocks booked; None: nothing may start now."""
    return next(iter(claim_all(session, engine_name, policy, limit=1).claims), None)


def claim_all(
    session: Session,
    engine_name: str,
    policy: ClaimPolicy,
    *,
    ended: Sequence[FreedSlot] = (),
    preview: Preview | None = None,
    limit: int | None = None,
) -> Claimed:
    """Every job that may start on this engine now is running, its blocks booked.

    Args:
        session: the caller's transaction.
        engine_name: where they are to run.
        policy: of the claims.
        ended: jobs whose bookings are closed first.
        preview: candidates that were read a moment ago; the queue is read again only if a slot stays free.
        limit: most jobs to start; None: as many as there are slots.
    """
    locked = engine_load.lock(session, engine_name)
    served_tokens.serialize(session)
    for each in ended:  # behind the locks: accounts come after engines, here as everywhere
        reservations.close(session, each.lease_id, produced=each.produced)
    if locked is None or locked[0].paused_reason is not None:
        return Claimed()
    engine, now = locked
    load = engine_load.read(session, engine)
    somebody_waits = queue_window.has_interactive(session, engine.model)
    if load.budget.free_slots < 1 and not somebody_waits:
        return Claimed()
    starting = _Starting(session, engine_name, load, policy, limit)
    # Who waits for an answer came perhaps since, and batch jobs may have left to make room for it.
    if preview is not None and not somebody_waits:
        starting.start(list(preview.candidates))
    asked_for_room = False
    if not starting.claims or not starting.is_full:
        sizer = Sizer(session, load.capacity, policy)
        candidates = Ranking(session, engine.model, load.capacity, policy, sizer, now).head()
        left = starting.start(candidates)
        asked_for_room = (
            bool(left) and not starting.is_done and _ask_for_room(session, left, starting.load, policy)
        )
    starting.book()
    return Claimed(starting.claims, starting.load.budget.free_slots, asked_for_room)


def preview_claims(session: Session, engine_name: str, policy: ClaimPolicy) -> Preview:
    """What the next claims on this engine will choose from, and probably choose.

    Locks no job and no engine. Accounts are brought up to date: claims that trust it do not look at them.
    """
    engine = session.scalar(select(Engine).where(Engine.name == engine_name))
    if engine is None:
        return Preview()
    load = engine_load.read(session, engine)
    sizer = Sizer(session, load.capacity, policy)
    now = database_now(session)
    candidates = Ranking(session, engine.model, load.capacity, policy, sizer, now).head()
    found: dict[UUID, None] = {}  # in order, each once
    for ended in (None, *load.running):
        choice = _choose(candidates, load if ended is None else _without(load, ended), policy)
        found.update({each.job.text_id: None for each in candidates if each.job.id == choice.start})
    found.update(dict.fromkeys(_texts_of_next_round(candidates, load, policy)))
    return Preview(candidates, list(found))


@dataclass(slots=True)
class _Starting:
    """Jobs start on an engine within one transaction, which holds its row."""

    session: Session
    engine_name: str
    load: EngineLoad
    policy: ClaimPolicy
    limit: int | None
    claims: list[Claim] = field(default_factory=list)
    _bookings: list[dict[str, object]] = field(default_factory=list)
    _charges: Counter[tuple[UUID, str]] = field(default_factory=Counter)

    @property
    def is_full(self) -> bool:
        """Whether no slot is left."""
        return self.load.budget.free_slots < 1

    @property
    def is_done(self) -> bool:
        """Whether as many have started as were wanted."""
        return self.limit is not None and len(self.claims) >= self.limit

    def start(self, candidates: list[Ranked]) -> list[Ranked]:
        """Those of them that may start now run; the others are returned."""
        while candidates and not self.is_done:
            choice = _choose(candidates, self.load, self.policy)
            if choice.start is None:
                break
            chosen = next(each for each in candidates if each.job.id == choice.start)
            candidates.remove(chosen)
            self._start(chosen, choice)  # else another engine was faster, or it was recounted
        return candidates

    def book(self) -> None:
        """What has started is booked and charged."""
        if self._bookings:
            self.session.execute(insert(Reservation), self._bookings)
        for (tenant_id, model), num_tokens in sorted(self._charges.items()):
            served_tokens.charge(self.session, tenant_id, model, num_tokens)

    def _start(self, chosen: Ranked, choice: Choice) -> None:
        seen, size = chosen.job, chosen.size
        lease = Lease(seen.id, uuid7())
        job = lifecycle.claim(
            self.session,
            lease,
            seen=seen,
            lasting=self.policy.lease,
            engine_name=self.engine_name,
        )
        if job is None:
            return
        self.load = _with(self.load, chosen, lease)
        self.claims.append(Claim(lease, size.blocks, size.output_tokens, job))
        self._charges[job.tenant_id, job.model] += charged(seen, size)
        self._bookings.append(
            {
                "lease_id": lease.lease_id,
                "engine_name": self.engine_name,
                "job_id": job.id,
                "blocks": size.blocks,
                "output_tokens": size.output_tokens,
                "output_before": job.completion_tokens,
                "overtakes": choice.overtakes,
                "alone": chosen.candidate.alone,
            }
        )


def _choose(candidates: Sequence[Ranked], load: EngineLoad, policy: ClaimPolicy) -> Choice:
    return choose(
        [each.candidate for each in candidates],
        list(load.running.values()),
        load.budget,
        max_batch_size=load.capacity.max_batch_size,
        policy=policy.packing,
    )


def _texts_of_next_round(candidates: Sequence[Ranked], load: EngineLoad, policy: ClaimPolicy) -> list[UUID]:
    """The texts of jobs that would start if all that run ended together, as equal ones do."""
    left, text_ids = list(candidates), []
    for lease_id in load.running:
        load = _without(load, lease_id)
    while left and (choice := _choose(left, load, policy)).start is not None:
        chosen = next(each for each in left if each.job.id == choice.start)
        left.remove(chosen)
        text_ids.append(chosen.job.text_id)
        load = _with(load, chosen, Lease(chosen.job.id, uuid7()))
    return text_ids


def _without(load: EngineLoad, lease_id: UUID) -> EngineLoad:
    """The engine once this job has ended."""
    rest = {each: running for each, running in load.running.items() if each != lease_id}
    budget = replace(
        load.budget,
        free_slots=load.budget.free_slots + 1,
        free_blocks=load.budget.free_blocks + load.running[lease_id].blocks,
        idle=not rest,
    )
    return replace(load, running=rest, budget=budget)


def _with(load: EngineLoad, chosen: Ranked, lease: Lease) -> EngineLoad:
    """The engine once this job has started."""
    candidate = chosen.candidate
    started = Running(
        candidate.job_id,
        candidate.blocks,
        candidate.steps,
        lane=candidate.lane,
        recompute_tokens=None if chosen.job.num_yields else chosen.job.prompt_tokens,
    )
    budget = replace(
        load.budget,
        free_slots=0 if candidate.alone else load.budget.free_slots - 1,
        free_blocks=load.budget.free_blocks - candidate.blocks,
        idle=False,
    )
    return replace(load, running={**load.running, lease.lease_id: started}, budget=budget)


def _ask_for_room(
    session: Session, candidates: Sequence[Ranked], load: EngineLoad, policy: ClaimPolicy
) -> bool:
    """Whether batch jobs were asked to leave for the first interactive one."""
    if not policy.preempts or candidates[0].candidate.lane is not Lane.INTERACTIVE:
        return False
    leaving = choose_preemptions(
        candidates[0].candidate,
        list(load.running.values()),
        load.budget,
        max_batch_size=load.capacity.max_batch_size,
        policy=policy.packing,
        batch_waits=any(each.candidate.lane is Lane.BATCH for each in candidates),
    )
    return bool(leaving) and lifecycle.request_preemption(session, leaving) > 0
