"""How a job at the end of its reservation continues: with a larger one, after a wait, or later."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.engines import served_tokens
from jobs.models import Job, Reservation, Tenant
from jobs.scheduling import engine_load
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.packing import Candidate, wait_behind_waiting
from jobs.scheduling.segments import extend_or_yield
from jobs.scheduling.sizing import ClaimPolicy, Sizer
from jobs.transitions import Lease, LeaseLost


@dataclass(frozen=True, slots=True)
class Granted:
    """The job may generate `tokens` tokens in all now.

    Attributes:
        tokens: those of earlier runs included.
        slot_wait: steps until the engine has a slot for its request: one in the waiting room got the last.
    """

    tokens: int
    slot_wait: int = 0


@dataclass(frozen=True, slots=True)
class WaitForBlocks:
    """No block is free; others will end and leave theirs. The job keeps its reservation and asks again."""


@dataclass(frozen=True, slots=True)
class Yielded:
    """The job goes back to the queue: no job could continue, or one that it overtook would wait for it."""


@dataclass(frozen=True, slots=True)
class Extension:
    """A job that has used up its reservation.

    Attributes:
        lease: its fence.
        produced: tokens that it has generated.
    """

    lease: Lease
    produced: int


Extended = Granted | WaitForBlocks | Yielded | LeaseLost


def extend(
    session: Session, engine_name: str, asked: Sequence[Extension], *, policy: ClaimPolicy
) -> list[Extended]:
    """Extend reservations that are used up, each as if those before it had been extended.

    Args:
        session: the caller's transaction.
        engine_name: where the jobs run.
        asked: the jobs.
        policy: as at their claims.

    Returns:
        How each continues, in their order.
    """
    locked = engine_load.lock(session, engine_name)
    if locked is None:
        return [LeaseLost() for _ in asked]
    load = engine_load.read(session, locked[0])
    sizer = Sizer(session, load.capacity, policy)
    owned = select(Job, Reservation).join(
        Reservation, (Reservation.job_id == Job.id) & (Reservation.lease_id == Job.lease_id)
    )
    leases = [each.lease for each in asked]
    mine = owned.where(
        Job.id.in_([each.job_id for each in leases]), Job.lease_id.in_([each.lease_id for each in leases])
    )
    rows = session.execute(mine, execution_options={"populate_existing": True})
    found = {job.lease_id: (job, reservation) for job, reservation in rows}
    # No job waits for this engine while it is halted.
    overtaken = {} if locked[0].halt is not None else _overtaken(session, found.values(), sizer, policy)
    charges = Counter[tuple[UUID, str]]()
    extended = list[Extended]()
    for each in asked:
        if each.lease.lease_id not in found:
            extended.append(LeaseLost())
            continue
        job, reservation = found[each.lease.lease_id]
        before = reservation.output_tokens
        waiting = overtaken.get(reservation.overtakes)
        got, load = _extend(load, job, reservation, each.produced, sizer, waiting)
        extended.append(got)
        charges[job.tenant_id, job.model] += reservation.output_tokens - before
    served_tokens.charge(session, engine_name, +charges)
    return extended


def _extend(
    load: EngineLoad,
    job: Job,
    reservation: Reservation,
    produced: int,
    sizer: Sizer,
    overtaken: Candidate | None,
) -> tuple[Extended, EngineLoad]:
    """Extend one reservation; return how its job continues, and the load then."""
    wanted = sizer.size(job, produced=produced)
    others = [each for lease_id, each in load.reserved.items() if lease_id != reservation.lease_id]
    held = load.reserved[reservation.lease_id]
    growth = extend_or_yield(
        replace(held, steps_left=0, recompute_tokens=(job.prompt_tokens or 0) + produced),
        others,
        load.budget,
        wanted_blocks=max(1, wanted.blocks - reservation.blocks),
        overtaken=overtaken,
    )
    if growth.yields == job.id:
        return Yielded(), load
    before = reservation.output_tokens
    reservation.is_waiting = growth.blocks == 0
    reservation.blocks += growth.blocks
    if not reservation.is_waiting:
        room = load.capacity.tokens_in(reservation.blocks) - (job.prompt_tokens or 0)
        reservation.output_tokens = min(job.max_tokens, room)
    held = replace(
        held,
        blocks=held.blocks + growth.blocks,
        steps_left=held.steps_left + reservation.output_tokens - before,
        is_going=not reservation.is_waiting,
    )
    load = replace(
        load,
        reserved={**load.reserved, reservation.lease_id: held},
        budget=replace(load.budget, free_blocks=load.budget.free_blocks - growth.blocks),
    )
    if reservation.is_waiting:
        return WaitForBlocks(), load
    return Granted(reservation.output_tokens, slot_wait=wait_behind_waiting(others)), load


def _overtaken(
    session: Session, extended: Iterable[tuple[Job, Reservation]], sizer: Sizer, policy: ClaimPolicy
) -> dict[UUID | None, Candidate]:
    """Find the jobs that these started ahead of and that still wait and may start, by id."""
    ids = {each.overtakes for _, each in extended} - {None}
    if not ids:
        return {}
    query = select(Job).join(Tenant, Tenant.id == Job.tenant_id)
    mine = query.where(Job.id.in_(ids), Tenant.halt.is_(None))
    read = session.scalars(mine, execution_options={"populate_existing": True})
    found = dict[UUID | None, Candidate]()
    for job in read:
        if job.state != "queued":  # in the query, it would let the planner read the queue
            continue
        size, alone = sizer.size(job, produced=job.completion_tokens), job.num_rescues >= policy.max_rescues
        found[job.id] = Candidate(job.id, size.blocks, size.steps, alone=alone)
    return found
