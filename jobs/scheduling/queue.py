"""The head of the queue, in the order in which its jobs are entitled to start, with their sizes."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import literal_column, select, update
from sqlalchemy.orm import Session

from jobs.database import advisory_locks
from jobs.database.advisory_locks import Lock
from jobs.engines import registry, served_tokens
from jobs.engines.capacity import Capacity
from jobs.engines.registry import EngineRow
from jobs.models import Job, TenantAccount
from jobs.queries import QueuedJob
from jobs.scheduling import queue_rows
from jobs.scheduling.fair_share import Account, lift, rank
from jobs.scheduling.packing import Candidate, Family, Reuse
from jobs.scheduling.prefixes.engine_prefixes import EnginePrefixes, family_of
from jobs.scheduling.queue_rows import WaitingTenants
from jobs.scheduling.sizing import ClaimPolicy, Sizer
from jobs.states import Lane
from jobs.states.summary import ANSWER_TASKS, EXTRACTION_TASKS, TASKS, NodeKind

# Candidates: the first jobs of the ranking, and the first of every size.
_HEAD: Final = 40
_HEAD_OF_SLOT: Final = 2
_OF_EACH_SIZE: Final = 8


@dataclass(slots=True)
class Queue:
    """The head of a model's queue, as one engine may choose from it within one transaction.

    Attributes:
        policy: of the claims.
        prefixes: what the engine has of prompts; None: it reuses none.
        jobs: the rows that were read, by id; none is locked.
        candidates: those that may start next, in the order in which they are entitled to.
        charged: tokens that tenants pay for those that were chosen.
    """

    policy: ClaimPolicy
    prefixes: EnginePrefixes | None
    jobs: dict[UUID, QueuedJob]
    candidates: list[Candidate]
    charged: Counter[UUID] = field(default_factory=Counter)

    def take(self, job_id: UUID) -> Candidate:
        """Take a candidate off the queue."""
        place = next(place for place, each in enumerate(self.candidates) if each.job_id == job_id)
        return self.candidates.pop(place)


def read(
    session: Session,
    engine: EngineRow,
    now: datetime,
    policy: ClaimPolicy,
    *,
    free_slots: int,
    prefixes: EnginePrefixes | None,
    elsewhere: AbstractSet[Family],
) -> Queue:
    """Read what an engine may start, interactive jobs first, then by tokens served, priority and age.

    Updates the accounts of tenants that have come or left.

    Args:
        session: of the claim.
        engine: its row, which the transaction has locked.
        now: by the database's clock.
        policy: of the claim.
        free_slots: that the engine has.
        prefixes: what it has of prompts; None: it reuses none.
        elsewhere: families that other engines have, and this one leaves to them.
    """
    ranking = Ranking(
        session,
        engine.model,
        registry.capacity_of(engine),
        policy,
        now,
        engine_name=engine.name,
        max_rows=queue_rows.max_rows(free_slots),
        prefixes=prefixes,
        elsewhere=elsewhere,
    )
    length = max(_HEAD, _HEAD_OF_SLOT * free_slots)
    candidates = [
        each
        for lane in ranking.lanes()
        for each in head_of(lane, ranking.jobs, length=length, prefixes=prefixes)
    ]
    return Queue(policy, prefixes, ranking.jobs, candidates)


@dataclass(slots=True)
class Ranking:
    """Ranks the queue of one model for one engine within one transaction.

    Attributes:
        engine_name: of the engine that claims; None: this is no claim, and updates no accounts.
        max_rows: rows read per lane.
        prefixes: what the engine has of prompts; None: it reuses none.
        elsewhere: families that other engines have, and this one leaves to them.
        jobs: the rows that were read.
    """

    session: Session
    model: str
    capacity: Capacity
    policy: ClaimPolicy
    now: datetime
    _: KW_ONLY
    engine_name: str | None = None
    max_rows: int = queue_rows.MAX_ROWS
    prefixes: EnginePrefixes | None = None
    elsewhere: AbstractSet[Family] = frozenset()
    jobs: dict[UUID, QueuedJob] = field(init=False, default_factory=dict)
    _sizer: Sizer = field(init=False)

    def __post_init__(self) -> None:
        """Begin without sizes."""
        self._sizer = Sizer(self.session, self.capacity, self.policy)

    def lanes(self) -> list[list[Candidate]]:
        """Rank the rows read of each lane: the first jobs of every size of every tenant."""
        waiting = queue_rows.waiting_tenants(self.session, self.model, self.engine_name)
        if self.prefixes is not None:
            self.prefixes.replay.recall(waiting.postponed)
        if self.engine_name is not None:
            sync_active_tenants(self.session, self.model, waiting)
        accounts = lift_returning(waiting)
        lanes = [
            self._rows(lane, sorted(sorted(waiting.tenants[lane]), key=lambda each: accounts[each].served))
            for lane in (Lane.INTERACTIVE, Lane.BATCH)
            if lane in waiting.tenants
        ]
        self.jobs = {job.id: job for rows in lanes for job in rows}
        self._sizer.read_peers(self.jobs.values())
        if self.prefixes is not None:
            self.prefixes.compare(self.jobs.values())
        return [self._rank(rows, accounts) for rows in lanes]

    def _rank(self, rows: Collection[QueuedJob], accounts: Mapping[UUID, Account]) -> list[Candidate]:
        queues: dict[UUID, list[Candidate]] = defaultdict(list)
        for job in sorted(rows, key=self._order):
            queues[job.tenant_id].append(self._candidate(job, accounts[job.tenant_id]))
        return rank(queues, accounts, num_tokens=self._charge, limit=len(rows))

    def _candidate(self, job: QueuedJob, account: Account) -> Candidate:
        """Describe a queued job for the packing."""
        size, priority = self._sizer.size(job, produced=job.completion_tokens), job.priority(self.now)
        return Candidate(
            job_id=job.id,
            blocks=size.blocks,
            steps=size.steps,
            lane=Lane(job.lane),
            group=(job.tenant_id, priority, _tree(job)),
            waited=self.now - job.created_at,
            alone=job.num_rescues >= self.policy.max_rescues,
            unread_tokens=job.prompt_tokens + job.completion_tokens,
            output_tokens=size.output_tokens,
            unlikely_tokens=size.unlikely_tokens,
            tenant=job.tenant_id,
            weight=account.weight,
            lead=account.served,
            priority=priority,
        )

    def _charge(self, each: Candidate) -> int:
        """Compute what a job's tenant would pay if it started now."""
        job = self.jobs[each.job_id]
        reuse = self.prefixes.reuse(job) if self.prefixes else Reuse()
        return charge_of(job, each.output_tokens, reused_tokens=reuse.tokens)

    def _rows(self, lane: Lane, tenants: Sequence[UUID]) -> Collection[QueuedJob]:
        """Read a lane's first jobs, and followers of the batch lane however far behind they are."""
        rows = self._first_jobs(lane, tenants)
        if self.prefixes is None or lane is not Lane.BATCH:
            return rows
        families = self.prefixes.families_of_followers(tenants)
        followers = queue_rows.followers(
            self.session, self.model, lane, families, capacity=self.capacity, now=self.now
        )
        rows = [job for job in rows if family_of(job) not in self.elsewhere or self._is_urgent(job)]
        return {job.id: job for job in (*rows, *followers)}.values()

    def _first_jobs(self, lane: Lane, tenants: Sequence[UUID]) -> Sequence[QueuedJob]:
        """Read jobs of the first tenants that have any that may run here."""
        without: dict[Family, UUID | None] = {}
        if lane is Lane.BATCH:
            without = dict.fromkeys(self.elsewhere) | (self.prefixes.being_read if self.prefixes else {})
        for start in range(0, len(tenants), queue_rows.MAX_TENANTS):
            rows = queue_rows.first_jobs(
                self.session,
                self.model,
                lane,
                tenants[start : start + queue_rows.MAX_TENANTS],
                capacity=self.capacity,
                now=self.now,
                max_rows=self.max_rows,
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


def charge_of(job: QueuedJob, output_tokens: int, *, reused_tokens: int) -> int:
    """Compute what its tenant pays at the start: for its prompt, once, and the new output."""
    prompt = prompt_charge_of(job, reused_tokens=reused_tokens) or 0
    return prompt + output_tokens - job.completion_tokens


def prompt_charge_of(job: QueuedJob, *, reused_tokens: int) -> int | None:
    """Compute what its tenant pays for what will be computed of its prompt.

    Returns:
        None if an earlier run has paid for it.
    """
    return job.prompt_tokens - reused_tokens if job.started_at is None else None


def head_of(
    ranked: Sequence[Candidate],
    jobs: Mapping[UUID, QueuedJob],
    *,
    length: int = _HEAD,
    prefixes: EnginePrefixes | None = None,
) -> list[Candidate]:
    """Return the first jobs, and wherever they rank the first of each size and those of what is here."""
    seen: dict[int, int] = defaultdict(int)
    kept = []
    for place, each in enumerate(ranked):
        job = jobs[each.job_id]
        size = max(0, job.prompt_tokens.bit_length() - 11)
        seen[size] += 1
        is_here = prefixes is not None and prefixes.is_here(job)
        if place < length or seen[size] <= _OF_EACH_SIZE or is_here:
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


def sync_active_tenants(session: Session, model: str, waiting: WaitingTenants) -> None:
    """Save the lifted accounts of returning tenants, and mark those without jobs idle.

    Does nothing if another transaction is doing so: the next ranking repeats it.
    """
    departed = waiting.accounts.keys() - set().union(*waiting.tenants.values())
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
