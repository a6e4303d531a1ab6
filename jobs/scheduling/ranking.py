"""The head of the queue in the order in which its jobs have a right to start, with what each would book."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import func, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database import advisory_locks
from jobs.database.advisory_locks import Lock
from jobs.engines.capacity import Capacity
from jobs.models import Job, TenantAccount
from jobs.queries import Queued
from jobs.scheduling import candidates
from jobs.scheduling.candidates import WaitingTenants
from jobs.scheduling.fair_share import Account, lift, rank
from jobs.scheduling.packing import Candidate
from jobs.scheduling.sizing import ClaimPolicy, ReservationSize, Sizer
from jobs.states import Lane
from jobs.states.summary import TASKS, NodeKind

# Of what was read, the first so many are candidates, and of every size so many more.
_HEAD: Final = 40
_OF_EACH_SIZE: Final = 8


@dataclass(frozen=True, slots=True)
class Ranked:
    """One candidate.

    Attributes:
        job: its row, not locked.
        size: what it would book.
        candidate: the same as the packing sees it.
    """

    job: Queued
    size: ReservationSize
    candidate: Candidate


@dataclass(slots=True)
class Ranking:
    """Ranks the queue of one model for one engine within one transaction.

    Attributes:
        syncs_tenants: whether the accounts of tenants that come and go are brought up to date.
        max_rows: of each lane, that are read.
    """

    session: Session
    model: str
    capacity: Capacity
    policy: ClaimPolicy
    sizer: Sizer
    now: datetime
    syncs_tenants: bool = field(default=True, kw_only=True)
    max_rows: int = field(default=candidates.MAX_ROWS, kw_only=True)

    def head(self) -> list[Ranked]:
        """The candidates: interactive ones first, then by what tenants were served, priority and age."""
        return [each for lane in self.lanes() for each in head_of(lane)]

    def lanes(self) -> list[list[Ranked]]:
        """All that was read of each lane, ranked: of every size of every tenant the first."""
        waiting = candidates.waiting_tenants(self.session, self.model)
        if self.syncs_tenants:
            sync_active_tenants(self.session, self.model, waiting)
        known = lifted(waiting)
        return [
            self._lane(lane, waiting.tenants[lane], known)
            for lane in (Lane.INTERACTIVE, Lane.BATCH)
            if lane in waiting.tenants
        ]

    def candidate(self, job: Queued, size: ReservationSize) -> Candidate:
        """A queued job as the packing sees it."""
        return Candidate(
            job_id=job.id,
            blocks=size.blocks,
            steps=size.steps,
            lane=Lane(job.lane),
            group=(job.tenant_id, job.priority(self.now), _tree(job)),
            waited=self.now - job.created_at,
            alone=job.num_rescues >= self.policy.max_rescues,
        )

    def _lane(self, lane: Lane, tenants: Collection[UUID], known: dict[UUID, Account]) -> list[Ranked]:
        rows = self._first_jobs(lane, sorted(sorted(tenants), key=lambda each: known[each].served))
        queues: dict[UUID, list[Ranked]] = defaultdict(list)
        for job in sorted(rows, key=self._order):
            size = self.sizer.size(job, produced=job.completion_tokens)
            queues[job.tenant_id].append(Ranked(job, size, self.candidate(job, size)))
        return rank(queues, known, num_tokens=lambda each: charged(each.job, each.size), limit=len(rows))

    def _first_jobs(self, lane: Lane, tenants: Sequence[UUID]) -> Sequence[Queued]:
        """Of the first tenants that have any job that may run here."""
        for start in range(0, len(tenants), candidates.MAX_TENANTS):
            rows = candidates.first_jobs(
                self.session,
                self.model,
                lane,
                tenants[start : start + candidates.MAX_TENANTS],
                capacity=self.capacity,
                now=self.now,
                max_rows=self.max_rows,
            )
            if rows:
                return rows
        return []

    def _order(self, job: Queued) -> tuple[int, bool, float, UUID]:
        """Within a tenant: priority, then who expires soon, then age."""
        priority = job.priority(self.now)
        is_urgent = priority > job.rank
        expires = job.expires_at.timestamp() if is_urgent and job.expires_at else 0.0
        return (-priority, not is_urgent, expires, job.id)


def charged(job: Queued, size: ReservationSize) -> int:
    """What its tenant pays when it starts: the prompt, once, and the output that is booked anew."""
    prompt = job.prompt_tokens if job.started_at is None else 0
    return prompt + size.output_tokens - job.completion_tokens


def head_of(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The first of them, and the first of each size class wherever they stand."""
    seen: dict[int, int] = defaultdict(int)
    kept = []
    for place, each in enumerate(ranked):
        size = max(0, each.job.prompt_tokens.bit_length() - 11)
        seen[size] += 1
        if place < _HEAD or seen[size] <= _OF_EACH_SIZE:
            kept.append(each)
    return kept


def _tree(job: Queued) -> UUID | None:
    """Of which tree the job is a part; None: it stands for itself.

    Trees are worked off one after another: the largest job of several trees is no better than the oldest.
    A document that is summarized whole is packed with all others.
    """
    return None if job.task == TASKS[NodeKind.WHOLE] else job.summary_id


def lifted(waiting: WaitingTenants) -> dict[UUID, Account]:
    """The accounts; who comes back from idleness stands where the least served of the others does."""
    accounts, idle = waiting.accounts, waiting.idle
    active = [account for tenant_id, account in accounts.items() if tenant_id not in idle]
    return {
        tenant_id: lift(account, active) if tenant_id in idle else account
        for tenant_id, account in accounts.items()
    }


def sync_active_tenants(session: Session, model: str, waiting: WaitingTenants) -> None:
    """Written down: who came back from idleness is lifted, and who has no job left is idle from now on.

    Unless somebody else writes to several accounts just now: then the next look does it.
    """
    gone = waiting.accounts.keys() - set().union(*waiting.tenants.values())
    if not gone and not waiting.idle:
        return
    if not advisory_locks.try_hold(session, Lock.ACCOUNTS):
        return
    if gone:
        _leave(session, model, gone)
    accounts = lifted(waiting)
    for tenant_id in sorted(waiting.idle):
        statement = insert(TenantAccount).values(
            tenant_id=tenant_id, model=model, served=accounts[tenant_id].served, is_active=True
        )
        served = func.greatest(TenantAccount.served, statement.excluded.served)
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["tenant_id", "model"], set_={"served": served, "is_active": True}
            )
        )


def _leave(session: Session, model: str, tenants: Collection[UUID]) -> None:
    """Those of them with nothing on any engine either are idle."""
    running = select(Job.tenant_id).where(Job.state == literal_column("'running'"), Job.model == model)
    session.execute(
        update(TenantAccount)
        .where(
            TenantAccount.model == model,
            TenantAccount.tenant_id.in_(sorted(tenants)),
            TenantAccount.tenant_id.not_in(running),
        )
        .values(is_active=False)
        .execution_options(synchronize_session=False)
    )
