"""Submissions at the same moment by keys with quotas of their own: no overrun, and none waits for ever."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from uuid import UUID

import pytest
from sqlalchemy import Engine, event, func, select
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session, sessionmaker

from api.runtime.quotas import QuotaCache
from jobs import submission
from jobs.database import transaction
from jobs.database.statements import Query
from jobs.errors import LimitError, LimitOf
from jobs.models import DEFAULT_TENANT, Job
from jobs.submission import Submitter
from jobs.tenants import allowances, key_quotas, quotas
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import QuotaUsage, TenantLimits
from support import CAPACITY, PATIENCE, SMALL, refusing, spec

ANY = 10**9
WIDE = TenantLimits(max_enqueued_tokens=ANY, max_jobs=ANY, max_requests=1)
KEYS = (UUID(int=1), UUID(int=2))
POISONED = "BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.custom_id = 'poison')"


def submitter(key_id: UUID, limits: TenantLimits, *, of_tenant: TenantLimits = WIDE, shard: int) -> Submitter:
    of_key = KeyQuota(key_id, DEFAULT_TENANT, limits)

    def admit(session: Session, more: QuotaUsage, then: Sequence[Query]) -> None:
        key_quotas.admit(session, of_key, more)
        allowances.take(session, DEFAULT_TENANT, shard, more, limits=of_tenant, then=then)

    return Submitter(DEFAULT_TENANT, SMALL, admit, api_key_id=key_id, key_quota=of_key)


def fill_up(sessions: sessionmaker[Session], by: Submitter, seed: int) -> tuple[int, LimitOf | None]:
    """Submit one or two jobs at a time until there is no room for one; every fifth transaction dies.

    Returns how many were stored, and whose limit ended it.
    """
    chance, num_stored, num, of = random.Random(seed), 0, 2, None  # noqa: S311  # no secret
    while num:
        dies = chance.random() < 0.2
        try:
            with sessions.begin() as session:
                submission.submit(session, [spec(10, max_tokens=6) for _ in range(num)], by)
                if dies:
                    session.rollback()
        except LimitError as error:
            num, of = num - 1, error.of
        else:
            num_stored += 0 if dies else num
            num = chance.choice([1, 2])
    return num_stored, of


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (TenantLimits(max_enqueued_tokens=ANY, max_jobs=31, max_requests=1), 31),
        (TenantLimits(max_enqueued_tokens=16 * 23 + 15, max_jobs=ANY, max_requests=1), 23),
    ],
    ids=["jobs", "tokens"],
)
def test_processes_that_submit_at_once_fill_the_quota_of_each_key_exactly(
    sessions: sessionmaker[Session], limits: TenantLimits, most: int
) -> None:
    each_by = [submitter(KEYS[place % 2], limits, shard=place % 4) for place in range(6)]
    with ThreadPoolExecutor(6) as pool:
        stored = list(pool.map(lambda place: fill_up(sessions, each_by[place], place), range(6)))
    assert {of for _, of in stored} == {LimitOf.KEY}
    with sessions() as session:
        held = [key_quotas.current_usage(session, KeyQuota(key, DEFAULT_TENANT, limits)) for key in KEYS]
        assert held == [QuotaUsage(16 * most, most)] * 2
        assert quotas.current_usage(session, DEFAULT_TENANT).jobs == sum(num for num, _ in stored) == 2 * most


def test_keys_never_exceed_their_tenant_together(sessions: sessionmaker[Session]) -> None:
    limits = TenantLimits(max_enqueued_tokens=ANY, max_jobs=20, max_requests=1)
    tight = TenantLimits(max_enqueued_tokens=ANY, max_jobs=31, max_requests=1)
    each_by = [submitter(KEYS[place % 2], limits, of_tenant=tight, shard=place) for place in range(4)]
    with ThreadPoolExecutor(4) as pool:
        stored = list(pool.map(lambda place: fill_up(sessions, each_by[place], place), range(4)))
    assert sum(num for num, _ in stored) == 31
    assert LimitOf.TENANT in {of for _, of in stored}


def test_submissions_of_one_key_that_are_each_partly_refused_do_not_deadlock(
    sessions: sessionmaker[Session],
) -> None:
    both = Barrier(2)

    def submit_some(shard: int) -> int:
        names = ("first", "poison", "last")
        specs = [spec(prompt=f"{name} of {shard}", custom_id=name) for name in names]
        by = submitter(KEYS[0], WIDE, shard=shard)
        with transaction(sessions) as session:
            both.wait(PATIENCE)
            found = submission.submit_each(session, specs, by)
        return sum(isinstance(each, DatabaseError) for each in found)

    with refusing(sessions, POISONED), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(submit_some, (0, 1), timeout=PATIENCE)) == [1, 1]
    with sessions() as session:
        mine = select(func.count()).where(Job.api_key_id == KEYS[0])
        assert session.scalar(mine) == 4


@pytest.mark.parametrize("has_quota", [False, True])
def test_only_a_key_with_quotas_costs_a_lock_and_a_sum(
    sessions: sessionmaker[Session], engine: Engine, *, has_quota: bool
) -> None:
    limits = TenantLimits(max_enqueued_tokens=ANY, max_jobs=100, max_requests=1)
    of_key = KeyQuota(KEYS[0], DEFAULT_TENANT, limits) if has_quota else None
    cache = QuotaCache()
    statements: list[str] = []

    def watch(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    def submit(by: Submitter) -> list[str]:
        with sessions.begin() as session:
            submission.submit(session, [spec(10, max_tokens=8)], by)
        found = statements.copy()
        statements.clear()
        return found

    admit = partial(cache.admission, DEFAULT_TENANT, WIDE)
    event.listen(engine, "before_cursor_execute", watch)
    try:
        nobody = Submitter(DEFAULT_TENANT, CAPACITY, admit())
        submit(nobody)  # begins an allowance
        before = submit(nobody)
        by_key = Submitter(
            DEFAULT_TENANT, CAPACITY, admit(of_key=of_key), api_key_id=KEYS[0], key_quota=of_key
        )
        after = submit(by_key)
    finally:
        event.remove(engine, "before_cursor_execute", watch)
    assert len(after) - len(before) == (2 if has_quota else 0)
    assert any("pg_advisory_xact_lock" in each for each in after) is has_quota
