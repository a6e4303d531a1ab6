"""Draining reservations go only when the engine's gauges prove, twice, that their requests have ended."""

import time
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming.runs import stray_run
from jobs.database import database_now, transaction
from jobs.ids import uuid7
from jobs.models import Job, Reservation
from jobs.scheduling import growth
from jobs.starting import Claim
from jobs.transitions import Lease
from support import CAPACITY, ENGINE, POLICY, claim_one, register_engine, spec, submit_one
from worker.engine.gauges import Gauges
from worker.inference.draining import DrainMonitor, OpenRequests

TINY = replace(CAPACITY, max_blocks=10)
ONE_ACTIVE = Gauges(active_requests=1, max_blocks=10)
TWO_ACTIVE = Gauges(active_requests=2, max_blocks=10)
NONE_ACTIVE = Gauges(max_blocks=10)


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Drains:
    """A monitor that judges by gauges alone, and its clock."""

    monitor: DrainMonitor
    clock: Clock

    def look(self, gauges: Gauges | None, *inside: Claim, num_unsure: int = 0, after: float = 1.0) -> None:
        """One look, some time after the last one, while these requests of ours are inside."""
        self.clock.now += after
        known = frozenset((each.lease.lease_id, 1.0) for each in inside)
        self.monitor.check(gauges, OpenRequests(self.clock.now, known, len(known) + num_unsure))


@pytest.fixture
def drains(sessions: sessionmaker[Session]) -> Drains:
    clock = Clock()
    monitor = DrainMonitor(
        sessions, ENGINE, limit=lambda _: timedelta(hours=1), answers=lambda: False, clock=clock
    )
    return Drains(monitor, clock)


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
        ending.drain(session, claims[0].lease.lease_id)
    return claims


def left(sessions: sessionmaker[Session]) -> set[object]:
    with sessions() as session:
        return set(session.scalars(select(Reservation.lease_id)))


def test_a_job_that_waits_for_blocks_does_not_hide_a_request_that_drains(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    draining, waiting = reserved(sessions)
    with transaction(sessions) as session:
        session.execute(
            update(Reservation).where(Reservation.lease_id == waiting.lease.lease_id).values(output_tokens=32)
        )
        asked = [growth.Extension(waiting.lease, 32)]
        assert growth.extend(session, ENGINE, asked, policy=POLICY) == [growth.WaitForBlocks()]
    for _ in range(3):  # the one active request is the draining one
        drains.look(ONE_ACTIVE)
    assert left(sessions) == {draining.lease.lease_id, waiting.lease.lease_id}
    for _ in range(2):
        drains.look(NONE_ACTIVE)
    assert left(sessions) == {waiting.lease.lease_id}


def test_a_reservation_whose_request_brought_no_token_yet_does_not_hide_one_that_drains(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    draining, loading = reserved(sessions)
    for _ in range(3):
        drains.look(ONE_ACTIVE)
    assert left(sessions) == {draining.lease.lease_id, loading.lease.lease_id}


def test_a_draining_reservation_goes_when_only_requests_that_generate_are_active(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    _, generating = reserved(sessions)
    for _ in range(2):
        drains.look(ONE_ACTIVE, generating)
    assert left(sessions) == {generating.lease.lease_id}


def test_gauges_that_show_no_request_only_once_are_not_believed(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    both = {claim.lease.lease_id for claim in reserved(sessions)}
    for gauges in (NONE_ACTIVE, ONE_ACTIVE, NONE_ACTIVE, None):
        drains.look(gauges)
        assert left(sessions) == both
    drains.look(NONE_ACTIVE)
    assert left(sessions) == both, "the look without gauges must count as none"


def test_a_request_that_waits_inside_the_engine_has_not_ended(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    draining, generating = reserved(sessions)
    one_waits = Gauges(active_requests=1, waiting_requests=1, max_blocks=10)
    for _ in range(3):  # the engine preempted the draining one, which it will resume
        drains.look(one_waits, generating)
    assert left(sessions) == {draining.lease.lease_id, generating.lease.lease_id}


def test_an_engine_that_does_not_count_who_waits_proves_no_end_while_one_of_ours_may_wait(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    draining, generating = reserved(sessions)
    waiting = replace(generating, lease=Lease(uuid7(), uuid7()))
    one_slot = replace(ONE_ACTIVE, max_requests=1)
    for _ in range(3):
        drains.look(one_slot, generating, waiting)
    assert left(sessions) == {draining.lease.lease_id, generating.lease.lease_id}
    for _ in range(2):
        drains.look(one_slot, generating)
    assert left(sessions) == {generating.lease.lease_id}


def test_a_request_is_inside_once_it_has_output_or_was_sent_a_second_ago() -> None:
    run = stray_run()
    run.take_over(500)
    assert not run.is_inside(time.monotonic()), "tokens of an earlier run prove nothing"
    run.arrives_at_once = True
    run.begin_request()
    sent_at = run.sent_at
    assert sent_at is not None
    assert not run.is_inside(sent_at + 0.9), "it may not have arrived"
    assert run.is_inside(sent_at + 1.1)
    run.note_tokens(sent_at + 0.1, num_tokens=501)
    assert run.is_inside(sent_at + 0.2)
    assert not run.is_inside(sent_at + 3), "the stream is silent: its request may be lost"
    run.end_request()
    assert not run.is_inside(sent_at + 0.2)


def test_a_request_that_is_encoded_before_it_reaches_the_engine_is_inside_once_it_has_output() -> None:
    run = stray_run()
    run.begin_request()
    sent_at = run.sent_at
    assert sent_at is not None
    assert not run.is_inside(sent_at + 3600)
    run.note_tokens(sent_at + 2, num_tokens=1)
    assert run.is_inside(sent_at + 2.1)


def test_prompts_that_are_being_read_do_not_keep_a_cancelled_request_s_blocks(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    _, reading = reserved(sessions)
    for _ in range(2):
        drains.look(ONE_ACTIVE, reading)
    assert left(sessions) == {reading.lease.lease_id}


def test_requests_that_may_just_have_arrived_delay_a_proof_but_do_not_start_it_anew(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    draining, reading = reserved(sessions)
    drains.look(ONE_ACTIVE, reading)
    drains.look(TWO_ACTIVE, reading, num_unsure=1, after=0.5)
    assert left(sessions) == {draining.lease.lease_id, reading.lease.lease_id}
    drains.look(ONE_ACTIVE, reading, after=0.5)
    assert left(sessions) == {reading.lease.lease_id}


def test_two_readings_prove_an_end_only_if_they_are_a_second_apart(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    both = {claim.lease.lease_id for claim in reserved(sessions)}
    drains.look(NONE_ACTIVE)
    drains.look(NONE_ACTIVE, after=0.9)
    assert left(sessions) == both
    drains.look(NONE_ACTIVE, after=0.1)
    assert len(left(sessions)) == 1


def test_a_request_of_ours_that_ended_before_the_second_reading_explains_none_at_the_first(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    draining, generating = reserved(sessions)
    drains.look(ONE_ACTIVE, generating)  # the draining one; the other's end is on its way to us
    drains.look(NONE_ACTIVE)
    assert left(sessions) == {draining.lease.lease_id, generating.lease.lease_id}


def test_another_client_delays_a_proof_and_never_makes_a_wrong_one(
    sessions: sessionmaker[Session], drains: Drains
) -> None:
    both = {claim.lease.lease_id for claim in reserved(sessions)}
    for gauges in (NONE_ACTIVE, ONE_ACTIVE, NONE_ACTIVE, TWO_ACTIVE):  # it sends request after request
        drains.look(gauges)
        assert left(sessions) == both
    drains.look(NONE_ACTIVE)
    drains.look(NONE_ACTIVE)
    assert len(left(sessions)) == 1


def test_a_reservation_whose_lease_has_expired_explains_no_request_in_the_engine(
    sessions: sessionmaker[Session], drains: Drains
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
    for _ in range(3):
        drains.look(Gauges(active_requests=1, max_blocks=9))
    with sessions() as session:
        assert len(session.scalars(select(Reservation.lease_id)).all()) == 2
    for _ in range(2):
        drains.look(Gauges(active_requests=0, max_blocks=9))
    with sessions() as session:
        assert session.scalars(select(Reservation.lease_id)).all() == [silent.lease_id]
