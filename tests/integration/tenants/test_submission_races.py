"""Submissions of one tenant at the same moment: none waits for one that waits for it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

from sqlalchemy import func, select
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session, sessionmaker

from jobs import submission
from jobs.database import transaction
from jobs.database.statements import Query
from jobs.models import DEFAULT_TENANT, Job, QuotaAllowance
from jobs.submission import Submitter
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
            both.wait(PATIENCE)
            by = Submitter(DEFAULT_TENANT, CAPACITY, admit=partial(_take, shard=shard))
            found = submission.submit_each(session, specs, by)
        return sum(isinstance(each, DatabaseError) for each in found)

    with refusing(sessions, POISONED), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(submit_some, (0, 1), timeout=PATIENCE)) == [1, 1]
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 4


def _take(session: Session, more: QuotaUsage, then: Sequence[Query], *, shard: int) -> None:
    allowances.take(session, DEFAULT_TENANT, shard, more, limits=LIMITS, then=then)
