"""A tenant pays for what it starts, also when nobody could take up its account before."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming import claims
from jobs.database import advisory_locks, database_now, transaction
from jobs.database.advisory_locks import Lock
from jobs.engines import reservations, served_tokens
from jobs.ids import uuid7
from jobs.models import AccountShard, Tenant, TenantAccount
from jobs.scheduling import tick
from jobs.settings import JobSettings
from jobs.starting import Claim
from jobs.states import FinishReason
from support import CAPACITY, ENGINE, MODEL, POLICY, output_of, register_engine, spec, submit_one
from worker.maintenance import JobMaintenance

WEIGHT = 2.0


@pytest.fixture
def newcomer(sessions: sessionmaker[Session]) -> Tenant:
    """A tenant with a prompt of 5,000 tokens in the queue, beside one that was served 9,000 units."""
    with transaction(sessions) as session:
        register_engine(session, capacity=CAPACITY)
        old, new = (Tenant(id=uuid7(), name=f"tenant {uuid7()}", weight=WEIGHT) for _ in range(2))
        session.add_all([old, new])
        session.flush()
        session.add(TenantAccount(tenant_id=old.id, model=MODEL, served=9000, is_active=True))
        submit_one(session, spec(100), tenant_id=old.id)
        submit_one(session, spec(5000), tenant_id=new.id)
    return new


def claims_beside(sessions: sessionmaker[Session], session: Session) -> list[Claim]:
    """What is claimed if another transaction holds the accounts while the queue is read."""
    with transaction(sessions) as other:
        advisory_locks.hold(other, Lock.ACCOUNTS)
        start = claims.choose(session, ENGINE, POLICY)
    return start()


def account_of(session: Session, tenant: Tenant) -> TenantAccount | None:
    return session.get(TenantAccount, (tenant.id, MODEL), populate_existing=True)


def served_by_all(session: Session, tenant: Tenant) -> float:
    return served_tokens.served(session, tenant.id, MODEL)


def test_a_new_tenant_s_first_prompt_is_charged_though_its_account_was_not_taken_up(
    sessions: sessionmaker[Session], newcomer: Tenant
) -> None:
    with transaction(sessions) as session:
        found = claims_beside(sessions, session)
        (claim,) = (each for each in found if each.job.tenant_id == newcomer.id)
        account = account_of(session, newcomer)
        assert account is not None
        assert account.is_active
        least = 9000 + (100 + claim.output_tokens) / WEIGHT  # the other tenant, charged first
        assert served_by_all(session, newcomer) == least + (5000 + claim.output_tokens) / WEIGHT
    with transaction(sessions) as session:  # a tick that takes accounts up leaves the charge where it is
        claims.claim_all(session, ENGINE, POLICY)
        ending.complete(session, claim.lease, output_of("x", 10), FinishReason.STOP)
        reservations.close(session, claim.lease.lease_id)
        assert served_by_all(session, newcomer) == least + 5010 / WEIGHT


def test_a_tenant_that_comes_back_is_lifted_before_it_is_charged(
    sessions: sessionmaker[Session], newcomer: Tenant
) -> None:
    with transaction(sessions) as session:
        session.add(TenantAccount(tenant_id=newcomer.id, model=MODEL, served=40, is_active=False))
    with transaction(sessions) as session:
        claims_beside(sessions, session)
        assert served_by_all(session, newcomer) > 9000 + 5000 / WEIGHT


def test_a_tenant_that_leaves_is_marked_idle_by_the_tick_of_its_last_end(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        register_engine(session, capacity=CAPACITY)
        tenant = Tenant(id=uuid7(), name=f"tenant {uuid7()}", weight=WEIGHT)
        session.add(tenant)
        session.flush()
        submit_one(session, spec(100), tenant_id=tenant.id)
        (claim,) = claims.claim_all(session, ENGINE, POLICY).claims
    end = ending.completed(claim.lease, output_of("x"))
    with transaction(sessions) as session:
        assert tick.tick(session, ENGINE, POLICY, ended=[end]).stored.keys() == {claim.lease.lease_id}
        account = account_of(session, tenant)
        assert account is not None
        assert not account.is_active


def test_a_tenant_that_was_served_more_than_others_keeps_that_when_it_comes_back(session: Session) -> None:
    tenant = Tenant(id=uuid7(), name=f"tenant {uuid7()}", weight=WEIGHT)
    session.add(tenant)
    session.flush()
    session.add(TenantAccount(tenant_id=tenant.id, model=MODEL, served=50_000, is_active=False))
    session.flush()
    for engine_name in (ENGINE, "another"):
        served_tokens.charge(session, engine_name, {(tenant.id, MODEL): 100})
    assert served_by_all(session, tenant) == 50_000 + 200 / WEIGHT


def test_rows_of_engines_that_are_gone_are_folded_and_accounts_count_the_same(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        now = database_now(session)
        tenants = [Tenant(id=uuid7(), name=f"tenant {uuid7()}", weight=WEIGHT) for _ in range(2)]
        session.add_all(tenants)
        session.flush()
        for engine_name in (ENGINE, "gone", "long gone"):
            served_tokens.charge(session, engine_name, {(each.id, MODEL): 100 for each in tenants})
    with transaction(sessions) as session:
        before = [served_by_all(session, each) for each in tenants]
    assert JobMaintenance(sessions).prune(JobSettings())["account_shards"] == 4
    with transaction(sessions) as session:
        assert [served_by_all(session, each) for each in tenants] == before
        left = session.scalars(select(AccountShard.engine_name)).all()
        served_tokens.charge(session, "gone", {(tenants[0].id, MODEL): 100})  # it comes back
        assert served_by_all(session, tenants[0]) == before[0] + 100 / WEIGHT
    assert left == [ENGINE] * 2
    with transaction(sessions) as session:
        assert served_tokens.fold(session, before=now + timedelta(days=1), limit=2) == 2
        assert served_tokens.fold(session, before=now + timedelta(days=1), limit=2) == 1


def test_folding_waits_for_no_claim(sessions: sessionmaker[Session], newcomer: Tenant) -> None:
    with transaction(sessions) as session:
        served_tokens.charge(session, "gone", {(newcomer.id, MODEL): 100})
        now = database_now(session)
    with transaction(sessions) as claiming:
        served_tokens.charge(claiming, "gone", {(newcomer.id, MODEL): 100})
        with transaction(sessions) as session:
            assert served_tokens.fold(session, before=now) == 0
        advisory_locks.hold(claiming, Lock.ACCOUNTS)
        with transaction(sessions) as session:
            assert served_tokens.fold(session, before=now) == 0
