from dataclasses import replace
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

import ending
from claiming import claims
from jobs import leases
from jobs.engines import reservations
from jobs.leases import JobProgress
from jobs.models import Job
from jobs.scheduling import engine_load
from jobs.scheduling.tick import Tick
from jobs.states import FinishReason, Lane, StopReason
from support import CAPACITY, ENGINE, POLICY, output_of, register_engine, spec, submit_one

SLOTS, ROOM = 16, 2
LARGE = replace(CAPACITY, max_batch_size=SLOTS, waiting_room=ROOM)


def full_engine(session: Session) -> Tick:
    """An engine whose slots and waiting room are taken by batch jobs; more are queued."""
    register_engine(session, capacity=LARGE)
    for place in range(SLOTS + ROOM + 3):
        submit_one(session, spec(100, max_tokens=300 + place))
    return claims.claim_all(session, ENGINE, POLICY)


def test_an_engine_gets_requests_for_its_slots_and_its_waiting_room(session: Session) -> None:
    found = full_engine(session)
    assert len(found.claims) == SLOTS + ROOM
    waiting = [each for each in found.claims if each.slot_wait]
    assert waiting == found.claims[SLOTS:]
    assert found.free_slots == 0
    assert not claims.claim_all(session, ENGINE, POLICY).claims


def test_the_end_of_one_job_brings_the_next_into_the_waiting_room(session: Session) -> None:
    first, *_ = full_engine(session).claims
    ending.complete(session, first.lease, output_of("x"), FinishReason.STOP)
    reservations.close(session, first.lease.lease_id)
    (following,) = claims.claim_all(session, ENGINE, POLICY).claims
    assert following.slot_wait > 0


def test_a_job_that_generates_has_a_slot_though_others_were_claimed_before(session: Session) -> None:
    started = full_engine(session).claims
    leases.report_all(session, [JobProgress(started[-1].lease, 5, timedelta(seconds=1))])
    engine = engine_load.lock(session, ENGINE)
    assert engine is not None
    running = engine_load.read(session, engine[0]).reserved
    assert not running[started[-1].lease.lease_id].waits
    assert sum(each.waits for each in running.values()) == ROOM


def test_nothing_enters_while_a_request_drains(session: Session) -> None:
    first, second, *_ = full_engine(session).claims
    ending.complete(session, first.lease, output_of("x"), FinishReason.STOP)
    reservations.close(session, first.lease.lease_id)
    ending.drain(session, second.lease.lease_id)
    assert not claims.claim_all(session, ENGINE, POLICY).claims


def test_leaving_the_waiting_room_is_no_preemption(session: Session) -> None:
    waiting = full_engine(session).claims[-1]
    ending.release_preempted(session, waiting.lease, output_of("", 0))
    assert session.get_one(Job, waiting.job.id).num_preemptions == 0


def test_no_batch_job_enters_while_an_interactive_one_runs(session: Session) -> None:
    register_engine(session, capacity=LARGE)
    chat = submit_one(session, spec(100, lane=Lane.INTERACTIVE))
    for _ in range(SLOTS + ROOM):
        submit_one(session, spec(100))
    started = claims.claim_all(session, ENGINE, POLICY).claims
    assert len(started) == SLOTS
    assert started[0].job.id == chat.id


def test_jobs_in_the_waiting_room_leave_for_an_interactive_one(session: Session) -> None:
    started = full_engine(session).claims
    in_slots, waiting = started[:SLOTS], started[SLOTS:]
    leases.report_all(session, [JobProgress(each.lease, 280, timedelta(seconds=9)) for each in in_slots])
    submit_one(session, spec(100, lane=Lane.INTERACTIVE))
    assert claims.claim_all(session, ENGINE, POLICY).asked_for_room
    asked = session.scalars(select(Job.id).where(Job.stop_reason == StopReason.PREEMPT)).all()
    assert {each.job.id for each in waiting} <= set(asked)
    assert len(asked) == ROOM + 1
