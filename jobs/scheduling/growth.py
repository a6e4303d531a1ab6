"""How a job at the end of its reservation continues: with a larger one, after a wait, or later."""

from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.engines import served_tokens
from jobs.models import Job, Reservation, Tenant
from jobs.scheduling import engine_load
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


def extend(
    session: Session,
    engine_name: str,
    lease: Lease,
    *,
    produced: int,
    policy: ClaimPolicy,
) -> Granted | WaitForBlocks | Yielded | LeaseLost:
    """Extend the reservation of a job that has used it up.

    Args:
        session: the caller's transaction.
        engine_name: where it runs.
        lease: its fence.
        produced: tokens it has generated.
        policy: as at its claim.
    """
    locked = engine_load.lock(session, engine_name)
    owned = select(Job).where(Job.id == lease.job_id, Job.lease_id == lease.lease_id, Job.state == "running")
    job = session.scalar(owned)
    mine = session.get(Reservation, lease.lease_id, populate_existing=True)
    if locked is None or job is None or mine is None:
        return LeaseLost()
    load = engine_load.read(session, locked[0])
    sizer = Sizer(session, load.capacity, policy)
    wanted = sizer.size(job, produced=produced)
    others = [each for lease_id, each in load.running.items() if lease_id != lease.lease_id]
    extension = extend_or_yield(
        replace(
            load.running[lease.lease_id],
            steps_left=0,
            recompute_tokens=(job.prompt_tokens or 0) + produced,
        ),
        others,
        load.budget,
        wanted_blocks=max(1, wanted.blocks - mine.blocks),
        # No job waits for this engine while it is halted.
        overtaken=None if locked[0].halt is not None else _overtaken(session, mine, sizer, policy),
    )
    if extension.yields == job.id:
        return Yielded()
    mine.is_waiting = extension.blocks == 0
    if mine.is_waiting:
        return WaitForBlocks()
    mine.blocks += extension.blocks
    room = load.capacity.tokens_in(mine.blocks) - (job.prompt_tokens or 0)
    granted = min(job.max_tokens, room)
    new_tokens = granted - mine.output_tokens
    served_tokens.charge(session, engine_name, {(job.tenant_id, job.model): new_tokens})
    mine.output_tokens = granted
    return Granted(granted, slot_wait=wait_behind_waiting(others))


def _overtaken(session: Session, mine: Reservation, sizer: Sizer, policy: ClaimPolicy) -> Candidate | None:
    """Find the job that this one started ahead of, if it still waits and may start."""
    if mine.overtakes is None:
        return None
    query = select(Job).join(Tenant, Tenant.id == Job.tenant_id)
    waiting = session.scalar(
        query.where(Job.id == mine.overtakes, Job.state == "queued", Tenant.halt.is_(None))
    )
    if waiting is None:
        return None
    size = sizer.size(waiting, produced=waiting.completion_tokens)
    return Candidate(waiting.id, size.blocks, size.steps, alone=waiting.num_rescues >= policy.max_rescues)
