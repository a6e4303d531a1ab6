"""The head of the queue in the order in which its jobs are entitled to start, and what each would reserve."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import literal_column, select, update
from sqlalchemy.orm import Session

from jobs.database import advisory_locks
from jobs.database.advisory_locks import Lock
from jobs.engines import served_tokens
from jobs.engines.capacity import Capacity
from jobs.models import Job, TenantAccount
from jobs.queries import QueuedJob
from jobs.scheduling import candidates
from jobs.scheduling.fair_share import Account, lift, rank
from jobs.scheduling.packing import Candidate
from jobs.scheduling.prefixes.engine_prefixes import EnginePrefixes, family_of
from jobs.scheduling.prefixes.followers import Family, Reuse
from jobs.scheduling.sizing import ClaimPolicy, ReservationSize, Sizer
from jobs.scheduling.waiting import WaitingTenants, waiting_tenants
from jobs.states import Lane
from jobs.states.summary import ANSWER_TASKS, EXTRACTION_TASKS, TASKS, NodeKind

# Candidates: the first jobs of the ranking, and the first of every size.
_HEAD: Final = 40
_HEAD_OF_SLOT: Final = 2
_OF_EACH_SIZE: Final = 8
# So many times as many while other engines take from the same queue.
_HEAD_WITH_RIVALS: Final = 4


@dataclass(frozen=True, slots=True)
class Ranked:
    """One candidate.

    Attributes:
        job: its row, not locked.
        size: the reservation it would hold.
        candidate: the same job as the packing sees it.
        priority: as the ranking saw it.
        account: of its tenant, before this job.
    """

    job: QueuedJob
    size: ReservationSize
    candidate: Candidate
    priority: int
    account: Account


@dataclass(slots=True)
class Ranking:
    """Ranks the queue of one model for one engine within one transaction.

    Attributes:
        syncs_tenants: update the accounts of tenants that arrive or leave.
        marks_idle: of these, also those that leave; otherwise a later ranking does it.
        waiting: who waits, read in this transaction; None: it is read now.
        first: the first batch jobs of one tenant, read with that; they are read again if others wait, too.
        max_rows: rows read per lane; None: enough to fill the engine's slots several times.
        known: what the engine has of prompts; None: it reuses none.
        elsewhere: families that other engines have, and this one leaves to them.
        engine_name: of the engine; None: this is no claim.
    """

    session: Session
    model: str
    capacity: Capacity
    policy: ClaimPolicy
    sizer: Sizer
    now: datetime
    syncs_tenants: bool = field(default=True, kw_only=True)
    marks_idle: bool = field(default=True, kw_only=True)
    waiting: WaitingTenants | None = field(default=None, kw_only=True)
    first: Sequence[QueuedJob] = field(default=(), kw_only=True)
    max_rows: int | None = field(default=None, kw_only=True)
    known: EnginePrefixes | None = field(default=None, kw_only=True)
    elsewhere: AbstractSet[Family] = field(default=frozenset(), kw_only=True)
    engine_name: str | None = field(default=None, kw_only=True)

    def head(self) -> list[Ranked]:
        """Return the candidates: interactive first, then by tokens served, priority, age."""
        length = max(_HEAD, _HEAD_OF_SLOT * self.capacity.max_batch_size)
        if self.policy.has_rivals:
            length *= _HEAD_WITH_RIVALS
        return [each for lane in self.lanes() for each in head_of(lane, length=length, known=self.known)]

    def lanes(self) -> list[list[Ranked]]:
        """Rank the rows read of each lane: the first jobs of every size of every tenant."""
        waiting = self.waiting or waiting_tenants(self.session, self.model, self.engine_name)
        if self.known is not None:
            self.known.replay.recall(waiting.overtaken)
        if self.syncs_tenants:
            sync_active_tenants(self.session, self.model, waiting, marks_idle=self.marks_idle)
        known = lift_returning(waiting)
        return [
            self._lane(lane, waiting.tenants[lane], known)
            for lane in (Lane.INTERACTIVE, Lane.BATCH)
            if lane in waiting.tenants
        ]

    def candidate(self, job: QueuedJob, size: ReservationSize) -> Candidate:
        """Describe a queued job for the packing."""
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
        first = sorted(sorted(tenants), key=lambda each: known[each].served)
        rows = self._with_followers(lane, first, self._first_jobs(lane, first))
        self.sizer.read_peers(rows)
        queues: dict[UUID, list[Ranked]] = defaultdict(list)
        for job in sorted(rows, key=self._order):
            size = self.sizer.size(job, produced=job.completion_tokens)
            queues[job.tenant_id].append(
                Ranked(job, size, self.candidate(job, size), job.priority(self.now), known[job.tenant_id])
            )
        return rank(queues, known, num_tokens=self._charge, limit=len(rows))

    def _charge(self, each: Ranked) -> int:
        """Compute what a job's tenant would pay if it started now."""
        reuse = self.known.reuse(each.job) if self.known else Reuse()
        return charge_of(each.job, each.size, reused_tokens=reuse.tokens)

    def _with_followers(
        self, lane: Lane, tenants: Collection[UUID], rows: Sequence[QueuedJob]
    ) -> Sequence[QueuedJob]:
        """Add batch jobs that begin with what the engine has, however far behind they are."""
        if self.known is None:
            return rows
        if lane is Lane.BATCH:
            rows = [job for job in rows if family_of(job) not in self.elsewhere or self._is_urgent(job)]
            here = self.known.sought([each for each in self.known.here if each.tenant_id in tenants])
            more = candidates.followers(
                self.session, self.model, lane, here, capacity=self.capacity, now=self.now
            )
            rows = list({job.id: job for job in (*rows, *more)}.values())
        self.known.know(rows)
        return rows

    def _first_jobs(self, lane: Lane, tenants: Sequence[UUID]) -> Sequence[QueuedJob]:
        """Read jobs of the first tenants that have any that may run here."""
        max_rows = self.max_rows or candidates.max_rows_on(self.capacity)
        without: dict[Family, UUID | None] = {}
        if lane is Lane.BATCH:
            without = dict.fromkeys(self.elsewhere) | (self.known.reading if self.known else {})
        if lane is Lane.BATCH and not without and {each.tenant_id for each in self.first} == {*tenants}:
            return self.first
        for start in range(0, len(tenants), candidates.MAX_TENANTS):
            rows = candidates.first_jobs(
                self.session,
                self.model,
                lane,
                tenants[start : start + candidates.MAX_TENANTS],
                capacity=self.capacity,
                now=self.now,
                max_rows=max_rows,
                without=without,
            )
            if rows:
                return rows
        return []

    def _order(self, job: QueuedJob) -> tuple[int, bool, float, UUID]:
        """Return a job's sort key within its tenant: priority, near expiry, age."""
        is_urgent = self._is_urgent(job)
        expires = job.expires_at.timestamp() if is_urgent and job.expires_at else 0.0
        return (-job.priority(self.now), not is_urgent, expires, job.id)

    def _is_urgent(self, job: QueuedJob) -> bool:
        """Return True near the end of the job's window."""
        return job.priority(self.now) > job.rank


def charge_of(job: QueuedJob, size: ReservationSize, *, reused_tokens: int = 0) -> int:
    """Compute what its tenant pays at the start: for its prompt, once, and the new output."""
    prompt = prompt_charge_of(job, reused_tokens=reused_tokens) or 0
    return prompt + size.output_tokens - job.completion_tokens


def prompt_charge_of(job: QueuedJob, *, reused_tokens: int) -> int | None:
    """Compute what its tenant pays for what will be computed of its prompt.

    Returns:
        None if an earlier run has paid for it.
    """
    return job.prompt_tokens - reused_tokens if job.started_at is None else None


def head_of(
    ranked: Sequence[Ranked], *, length: int = _HEAD, known: EnginePrefixes | None = None
) -> list[Ranked]:
    """Return the first jobs, and wherever they rank the first of each size and those of what is here."""
    seen: dict[int, int] = defaultdict(int)
    kept = []
    for place, each in enumerate(ranked):
        size = max(0, each.job.prompt_tokens.bit_length() - 11)
        seen[size] += 1
        if place < length or seen[size] <= _OF_EACH_SIZE or (known is not None and known.is_here(each.job)):
            kept.append(each)
    return kept


def _tree(job: QueuedJob) -> UUID | None:
    """Return the tree that the job is part of; None if it is independent.

    Trees run one after another: the largest job of several trees is no better than the oldest. A document
    that is read whole is packed with all other jobs.
    """
    return None if job.task in _WHOLE else job.summary_id


_WHOLE: Final = frozenset(tasks[NodeKind.WHOLE] for tasks in (TASKS, ANSWER_TASKS, EXTRACTION_TASKS))


def lift_returning(waiting: WaitingTenants) -> dict[UUID, Account]:
    """Return the accounts, lifting returning tenants to the least-served active one."""
    accounts, idle = waiting.accounts, waiting.idle
    active = [account for tenant_id, account in accounts.items() if tenant_id not in idle]
    return {
        tenant_id: lift(account, active) if tenant_id in idle else account
        for tenant_id, account in accounts.items()
    }


def sync_active_tenants(
    session: Session, model: str, waiting: WaitingTenants, *, marks_idle: bool = True
) -> None:
    """Save the lifted accounts of returning tenants, and mark those without jobs idle.

    Does nothing if another transaction is doing so: the next ranking repeats it.
    """
    departed = waiting.accounts.keys() - set().union(*waiting.tenants.values()) if marks_idle else set()
    if departed and advisory_locks.try_hold(session, Lock.ACCOUNTS):
        _mark_idle(session, model, departed)
    if not waiting.idle:
        return
    accounts = lift_returning(waiting)
    lifted_by = {each: accounts[each].served - waiting.accounts[each].served for each in waiting.idle}
    served_tokens.activate_free(session, model, lifted_by)


def _mark_idle(session: Session, model: str, tenants: Collection[UUID]) -> None:
    """Mark those of these tenants idle that have no running job on any engine."""
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
