"""Draining reservations go only when the engine's gauges prove, twice, that their requests have ended."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import database_now, transaction
from jobs.engines import reservations
from jobs.ids import uuid7
from jobs.models import Job, Reservation
from jobs.scheduling import growth
from jobs.scheduling.starts import Claim
from jobs.transitions import Lease
from support import CAPACITY, ENGINE, POLICY, claim_one, register_engine, spec, submit_one
from worker.engine.gauges import Gauges
from worker.inference.draining import DrainMonitor
from worker.inference.leases import RunningJob

TINY = replace(CAPACITY, max_blocks=10)
ONE_ACTIVE = Gauges(active_requests=1, max_blocks=10)
NONE_ACTIVE = Gauges(max_blocks=10)


@pytest.fixture
def drain_monitor(sessions: sessionmaker[Session]) -> DrainMonitor:
    """What judges by gauges alone."""
    return DrainMonitor(sessions, ENGINE, limit=lambda _: timedelta(hours=1), answers=lambda: False)


def reserved(
    sessions: sessionmaker[Session], *, reserved_ago: timedelta = timedelta(minutes=1)
) -> list[Claim]:
    """Two jobs that fill an engine of ten blocks; the first one's request drains."""
    with transaction(sessions) as session:
        register_engine(session, capacity=TINY)
        for _ in range(2):
            submit_one(session, spec(256, max_tokens=64))
        claims = [claim_one(session), claim_one(session)]
        created = database_now(session) - reserved_ago
        session.execute(update(Reservation).values(created_at=created))
        reservations.drain(session, claims[0].lease.lease_id)
    return claims


def left(sessions: sessionmaker[Session]) -> set[object]:
    with sessions() as session:
        return set(session.scalars(select(Reservation.lease_id)))


def test_a_job_that_waits_for_blocks_does_not_hide_a_request_that_drains(
    sessions: sessionmaker[Session], drain_monitor: DrainMonitor
) -> None:
    draining, waiting = reserved(sessions)
    with transaction(sessions) as session:
        session.execute(
            update(Reservation).where(Reservation.lease_id == waiting.lease.lease_id).values(output_tokens=32)
        )
        granted = growth.extend(session, ENGINE, waiting.lease, produced=32, policy=POLICY)
        assert granted == growth.WaitForBlocks()
    for _ in range(3):  # the one active request is the draining one
        drain_monitor.check(ONE_ACTIVE, generating=[waiting.lease.lease_id])
    assert left(sessions) == {draining.lease.lease_id, waiting.lease.lease_id}
    for _ in range(2):
        drain_monitor.check(NONE_ACTIVE, generating=[])
    assert left(sessions) == {waiting.lease.lease_id}


def test_a_reservation_whose_request_brought_no_token_yet_does_not_hide_one_that_drains(
    sessions: sessionmaker[Session], drain_monitor: DrainMonitor
) -> None:
    draining, loading = reserved(sessions)
    for _ in range(3):
        drain_monitor.check(ONE_ACTIVE, generating=[])
    assert left(sessions) == {draining.lease.lease_id, loading.lease.lease_id}


def test_a_draining_reservation_goes_when_only_requests_that_generate_are_active(
    sessions: sessionmaker[Session], drain_monitor: DrainMonitor
) -> None:
    _, generating = reserved(sessions)
    for _ in range(2):
        drain_monitor.check(ONE_ACTIVE, generating=[generating.lease.lease_id])
    assert left(sessions) == {generating.lease.lease_id}


def test_gauges_that_show_no_request_only_once_are_not_believed(
    sessions: sessionmaker[Session], drain_monitor: DrainMonitor
) -> None:
    both = {claim.lease.lease_id for claim in reserved(sessions)}
    for gauges in (NONE_ACTIVE, ONE_ACTIVE, NONE_ACTIVE, None):
        drain_monitor.check(gauges, generating=[])
        assert left(sessions) == both
    drain_monitor.check(NONE_ACTIVE, generating=[])
    assert left(sessions) == both, "the look without gauges must count as none"


def test_a_request_that_waits_inside_the_engine_has_not_ended(
    sessions: sessionmaker[Session], drain_monitor: DrainMonitor
) -> None:
    draining, generating = reserved(sessions)
    one_waits = Gauges(active_requests=1, waiting_requests=1, max_blocks=10)
    for _ in range(3):  # the engine preempted the draining one, which it will resume
        drain_monitor.check(one_waits, generating=[generating.lease.lease_id])
    assert left(sessions) == {draining.lease.lease_id, generating.lease.lease_id}


def test_a_lease_counts_as_generating_only_while_its_present_request_brings_tokens() -> None:
    running = RunningJob(Lease(uuid7(), uuid7()), valid_until=0.0)
    running.take_over(500)
    assert not running.is_generating(100.0), "tokens of an earlier run prove nothing"
    running.note_tokens(100.0, num_tokens=501)
    assert not running.is_generating(100.5), "the gauges may not count it yet"
    running.note_tokens(101.5, num_tokens=502)
    assert running.is_generating(101.6)
    assert not running.is_generating(105.0), "the stream is silent"
    running.generating_since = None
    assert not running.is_generating(101.6)


def test_a_reservation_whose_lease_has_expired_explains_no_request_in_the_engine(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        submit_one(session, spec())
        submit_one(session, spec())
        silent, draining = claim_one(session).lease, claim_one(session).lease
        past = database_now(session) - timedelta(minutes=1)
        session.execute(update(Reservation).values(created_at=past))
        session.execute(
            update(Reservation)
            .where(Reservation.lease_id == draining.lease_id)
            .values(state="draining", draining_since=past)
        )
        session.execute(update(Job).where(Job.id == silent.job_id).values(lease_expires_at=past))
    drain_monitor = DrainMonitor(sessions, ENGINE, limit=lambda _: timedelta(hours=1), answers=lambda: False)
    for _ in range(3):
        drain_monitor.check(Gauges(active_requests=1, max_blocks=9), generating=[])
    with sessions() as session:
        assert len(session.scalars(select(Reservation.lease_id)).all()) == 2
    for _ in range(2):
        drain_monitor.check(Gauges(active_requests=0, max_blocks=9), generating=[])
    with sessions() as session:
        assert session.scalars(select(Reservation.lease_id)).all() == [silent.lease_id]
