"""Submissions of one tenant at the same moment: none waits for one that waits for it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import Barrier

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from jobs import submission
from jobs.database import transaction
from jobs.job_rows import NewJob
from jobs.models import DEFAULT_TENANT, Job, QuotaAllowance
from jobs.submission import JobSpec, Refusal
from jobs.tenants import allowances
from jobs.tenants.quotas import QuotaUsage, TenantLimits
from support import CAPACITY, PATIENCE, refusing, register_engine, spec

LIMITS = TenantLimits(max_enqueued_tokens=10_000, max_jobs=20, max_requests=1)
# Enough for one job of 164 tokens; and more jobs than are free besides, so that whoever sums takes it back.
ALLOWANCE = {"tokens": 200, "jobs": 9, "max_enqueued_tokens": 10_000, "max_jobs": 20}
POISONED = "BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.custom_id = 'poison')"


def test_two_submissions_that_are_each_partly_refused_do_not_deadlock(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        session.add_all(
            QuotaAllowance(tenant_id=DEFAULT_TENANT, shard=shard, **ALLOWANCE) for shard in (0, 1)
        )
    both = Barrier(2)

    def submit_some(shard: int) -> int:
        names = ("first", "poison", "last")
        specs = [spec(prompt=f"{name} of {shard}", custom_id=name) for name in names]
        with transaction(sessions) as session:
            submit = _in_step(session, shard, both)
            found = list(submission.submit_each(session, specs, submit, tenant_id=DEFAULT_TENANT))
        return sum(isinstance(each, Refusal) for each in found)

    with refusing(sessions, POISONED), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(submit_some, (0, 1), timeout=PATIENCE)) == [1, 1]
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 4


def _in_step(session: Session, shard: int, both: Barrier) -> submission.SubmitSet:
    """Submit some; begin together with the other thread."""

    def admit(session: Session, more: QuotaUsage) -> None:
        allowances.take(session, DEFAULT_TENANT, shard, more, limits=LIMITS)

    submit = partial(
        submission.submit_set, session, tenant_id=DEFAULT_TENANT, default_capacity=CAPACITY, admit=admit
    )
    calls = count()

    def in_step(specs: Sequence[JobSpec]) -> list[NewJob]:
        if next(calls) == 0:
            both.wait(PATIENCE)
        return submit(specs)

    return in_step
