"""Submissions that arrive together share a transaction, and nothing else."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from uuid import UUID

from sqlalchemy import func, literal_column, select, text
from sqlalchemy.orm import Session, sessionmaker

from api.runtime.database import Transactions
from api.runtime.group_commit import GroupCommit
from api.runtime.quotas import QuotaCache
from jobs import tenants
from jobs.database import statements, transaction
from jobs.database.statements import Query
from jobs.errors import LimitError
from jobs.models import DEFAULT_TENANT, Job
from jobs.prompts.store import NewText
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from jobs.submission import Submitter
from jobs.tenants import allowances
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import QuotaUsage, TenantLimits
from submitting.group_commits import running
from support import CAPACITY, PATIENCE, refusing, register_engine, spec

US = Submitter(DEFAULT_TENANT, CAPACITY)


@asynccontextmanager
async def committing(settings: DatabaseSettings) -> AsyncIterator[GroupCommit]:
    transactions = Transactions(settings)
    async with running(GroupCommit(transactions), transactions) as group_commit:
        yield group_commit


async def stored(group_commit: GroupCommit, *names: str, by: Submitter = US) -> list[Job | BaseException]:
    async with asyncio.timeout(PATIENCE):
        submitting = (group_commit.submit(spec(prompt=name, custom_id=name), by) for name in names)
        return await asyncio.gather(*submitting, return_exceptions=True)


def custom_ids(sessions: sessionmaker[Session]) -> list[str | None]:
    with sessions() as session:
        return list(session.scalars(select(Job.custom_id).order_by(Job.id)))


def test_what_arrives_together_is_stored_in_one_transaction(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def submit() -> list[Job | BaseException]:
        async with committing(database_settings) as group_commit:
            return await stored(group_commit, *map(str, range(30)))

    with transaction(sessions) as session:
        register_engine(session)
    jobs = asyncio.run(submit())
    assert [job.state for job in jobs if isinstance(job, Job)] == [JobState.QUEUED] * 30
    with sessions() as session:
        assert (
            session.scalar(select(func.count(literal_column("xmin::text").distinct())).select_from(Job)) == 1
        )
    assert custom_ids(sessions) == [*map(str, range(30))]


def test_a_transaction_is_bounded_by_all_that_its_jobs_bring(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def submit() -> None:
        async with committing(database_settings) as group_commit, asyncio.timeout(PATIENCE):
            each_with = [spec(guide=NewText(os.urandom(1_500_000).hex())) for _ in range(4)]
            await asyncio.gather(*(group_commit.submit(each, US) for each in each_with))

    asyncio.run(submit())
    with sessions() as session:
        num = session.scalar(select(func.count(literal_column("xmin::text").distinct())).select_from(Job))
    assert num == 2


def test_one_that_the_database_refuses_fails_alone(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def submit() -> list[Job | BaseException]:
        async with committing(database_settings) as group_commit:
            return await stored(group_commit, "first", "poison", "last")

    with refusing(sessions, "BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.custom_id = 'poison')"):
        first, poisoned, last = asyncio.run(submit())
    assert isinstance(first, Job)
    assert isinstance(poisoned, Exception)
    assert isinstance(last, Job)
    assert custom_ids(sessions) == ["first", "last"]


def test_a_quota_with_room_for_some_is_filled_exactly(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    limits = TenantLimits(max_enqueued_tokens=10_000, max_jobs=2, max_requests=1)

    def admit(session: Session, more: QuotaUsage, then: Sequence[Query]) -> None:
        allowances.take(session, DEFAULT_TENANT, 0, more, limits=limits, then=then)

    async def submit() -> list[Job | BaseException]:
        async with committing(database_settings) as group_commit:
            by = Submitter(DEFAULT_TENANT, CAPACITY, admit)
            return await stored(group_commit, "a", "b", "c", by=by)

    found = asyncio.run(submit())
    assert [isinstance(each, Job) for each in found] == [True, True, False]
    assert isinstance(found[2], LimitError)
    assert custom_ids(sessions) == ["a", "b"]


def test_a_keys_quota_bounds_its_own_jobs_among_those_that_arrive_together(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    wide = TenantLimits(max_enqueued_tokens=10**9, max_jobs=10**6, max_requests=1)
    cache, limited, other = QuotaCache(), UUID(int=1), UUID(int=2)
    quota = KeyQuota(limited, DEFAULT_TENANT, replace(wide, max_jobs=2))
    admit = partial(cache.admission, DEFAULT_TENANT, wide)
    by_limited = Submitter(DEFAULT_TENANT, CAPACITY, admit(of_key=quota), api_key_id=limited, key_quota=quota)
    others = [Submitter(DEFAULT_TENANT, CAPACITY, admit(), api_key_id=each) for each in (other, None)]

    async def submit() -> list[Job | BaseException]:
        async with committing(database_settings) as group_commit, asyncio.timeout(PATIENCE):
            names = [(str(number), by) for number in range(4) for by in (by_limited, *others)]
            each = (group_commit.submit(spec(prompt=name, custom_id=name), by) for name, by in names)
            return await asyncio.gather(*each, return_exceptions=True)

    found = asyncio.run(submit())
    assert [isinstance(each, LimitError) for each in found[::3]] == [False, False, True, True]
    assert not any(isinstance(each, BaseException) for each in [*found[1::3], *found[2::3]])
    with sessions() as session:
        counts = dict(session.execute(select(Job.api_key_id, func.count()).group_by(Job.api_key_id)).all())
    assert counts == {limited: 2, other: 4, None: 4}


def test_a_caller_that_leaves_harms_no_other(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def cancel(task: "asyncio.Task[Job]") -> None:
        task.cancel()

    async def submit() -> list[Job | BaseException]:
        async with committing(database_settings) as group_commit:
            leaving = asyncio.create_task(
                group_commit.submit(spec(prompt="leaving", custom_id="leaving"), US)
            )
            await asyncio.create_task(cancel(leaving))  # which begins after it
            return await stored(group_commit, "staying")

    (job,) = asyncio.run(submit())
    assert isinstance(job, Job)
    assert "staying" in custom_ids(sessions)


def test_a_tenant_whose_transaction_waits_holds_up_no_other(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    with transaction(sessions) as session:
        other = Submitter(tenants.create(session, "other").id, CAPACITY)
    locked = asyncio.Event()

    async def submit(
        holder: Session,
    ) -> tuple[list[Job | BaseException], list[Job | BaseException]]:
        waiting = Submitter(DEFAULT_TENANT, CAPACITY, partial(_wait_for, locked.set))
        async with committing(database_settings) as group_commit:
            first = [asyncio.create_task(stored(group_commit, "waiting", by=waiting))]
            await asyncio.wait_for(locked.wait(), PATIENCE)
            first.append(asyncio.create_task(stored(group_commit, "behind it", by=waiting)))
            theirs = await asyncio.create_task(stored(group_commit, "theirs", by=other))  # after it
            assert not any(each.done() for each in first)
            holder.rollback()
            return [job for jobs in await asyncio.gather(*first) for job in jobs], theirs

    with sessions() as holder:
        holder.execute(_HOLD)
        ours, theirs = asyncio.run(submit(holder))
    assert all(isinstance(each, Job) for each in [*ours, *theirs])


_HOLD = text("SELECT pg_advisory_xact_lock(4711)")


def _wait_for(begun: Callable[[], None], session: Session, _more: object, then: Sequence[Query]) -> None:
    begun()
    session.execute(_HOLD)
    statements.fetch_all(session, then)
