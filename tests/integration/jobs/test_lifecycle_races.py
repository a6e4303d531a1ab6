"""Concurrent moves of one job: each is a transaction, and none is lost."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

import ending
from jobs import lifecycle
from jobs.database import database_now, transaction
from jobs.engines import reservations
from jobs.models import DEFAULT_TENANT, Engine, Job, Summary, WebhookEvent
from jobs.states import JobState, StopReason
from jobs.transitions import Lease
from summary_support import create, ready_document, text_of
from support import (
    ENGINE,
    ERROR,
    PATIENCE,
    claim_one,
    eventually,
    num_waiting_for_locks,
    output_of,
    register_engine,
    spec,
    submit_one,
)

BACKOFF = timedelta(seconds=2)


def running(sessions: sessionmaker[Session]) -> Lease:
    with transaction(sessions) as session:
        register_engine(session)
        submit_one(session, spec())
        return claim_one(session).lease


def job(sessions: sessionmaker[Session], lease: Lease) -> Job:
    with sessions() as session:
        return session.get_one(Job, lease.job_id)


def cancel(sessions: sessionmaker[Session], lease: Lease) -> str:
    with transaction(sessions) as session:
        return lifecycle.cancel(session, lease.job_id, tenant_id=DEFAULT_TENANT).state


def test_an_end_whose_row_is_locked_is_not_lost_beside_that_of_an_earlier_run(
    sessions: sessionmaker[Session],
) -> None:
    stale = running(sessions)
    with transaction(sessions) as session:
        lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
        reservations.drained(session, [stale.lease_id])
        current = claim_one(session).lease
    ends = [ending.completed(each, output_of("x")) for each in (stale, current)]
    with sessions() as other, transaction(sessions) as session:
        other.execute(select(Job.id).where(Job.id == current.job_id).with_for_update())
        stored = lifecycle.finish(session, ends)
        assert [(lease_id, each.state) for lease_id, each in stored.items()] == [(stale.lease_id, None)]


BACK: dict[str, Callable[[Session, Lease], object]] = {
    "release": ending.release,
    "recount": lambda session, lease: ending.recount(session, lease, prompt_tokens=120),
    "retry": lambda session, lease: ending.retry(session, lease, ERROR, max_attempts=3, backoff=BACKOFF),
    "lose": lambda session, lease: ending.release_after_engine_loss(session, lease, max_rescues=2),
}


@pytest.mark.parametrize("verb", BACK)
def test_a_cancel_during_a_job_s_release_is_not_lost(sessions: sessionmaker[Session], verb: str) -> None:
    lease = running(sessions)
    with ThreadPoolExecutor(1) as pool:
        with transaction(sessions) as session:
            assert BACK[verb](session, lease)
            cancelled = pool.submit(cancel, sessions, lease)
            eventually(lambda: num_waiting_for_locks(sessions))
        assert cancelled.result(timeout=PATIENCE) == JobState.CANCELLED
    assert job(sessions, lease).state == JobState.CANCELLED


@pytest.mark.parametrize("verb", BACK)
@pytest.mark.parametrize("wanted", ["cancelled", "expired"])
def test_a_job_with_a_stop_request_does_not_return_to_the_queue(
    sessions: sessionmaker[Session], verb: str, wanted: str
) -> None:
    lease = running(sessions)
    with transaction(sessions) as session:
        reason = {"cancelled": "cancel", "expired": "expire"}[wanted]
        session.execute(text("UPDATE jobs SET stop_reason = :reason"), {"reason": reason})
    with transaction(sessions) as session:
        assert BACK[verb](session, lease) == wanted
    assert job(sessions, lease).state == wanted
    with sessions() as session:
        assert session.scalars(select(WebhookEvent.type)).all() == [f"job.{wanted}"]


def test_many_jobs_are_cancelled_in_bounded_rounds(sessions: sessionmaker[Session]) -> None:
    lease = running(sessions)
    with transaction(sessions) as session:
        for _ in range(3):
            submit_one(session, spec())
    in_rounds = []
    for _ in range(4):
        with transaction(sessions) as session:
            conditions = [Job.task == "generate"]
            in_rounds.append(lifecycle.cancel_where(session, conditions, tenant_id=DEFAULT_TENANT, limit=2))
    assert in_rounds == [2, 2, 0, 0]
    assert job(sessions, lease).stop_reason == StopReason.CANCEL


def rescued(session: Session) -> set[UUID]:
    """Rescue without waiting for any lock."""
    session.execute(text("SET LOCAL lock_timeout = '1ms'"))
    now = database_now(session) + timedelta(minutes=2)
    return {each.id for each in lifecycle.rescue(session, now=now, max_rescues=2)}


def test_a_rescue_waits_for_no_tree_while_it_holds_an_engine(sessions: sessionmaker[Session]) -> None:
    free, part = running(sessions), running(sessions)
    with transaction(sessions) as session:
        (tree,) = create(session, ready_document(session, text_of(50)))
        session.execute(update(Job).where(Job.id == part.job_id).values(summary_id=tree.id))
    with sessions() as other, other.begin():
        other.execute(select(Summary.id).where(Summary.id == tree.id).with_for_update())
        with transaction(sessions) as session:
            assert rescued(session) == {free.job_id}
    with transaction(sessions) as session:
        assert rescued(session) == {part.job_id}


def test_a_rescue_waits_for_no_engine_while_it_holds_another(sessions: sessionmaker[Session]) -> None:
    mine = running(sessions)
    with transaction(sessions) as session:
        register_engine(session, "busy")
        submit_one(session, spec())
        theirs = claim_one(session, "busy").lease
    with sessions() as other, other.begin():
        other.execute(select(Engine.name).where(Engine.name == "busy").with_for_update())
        with transaction(sessions) as session:
            assert rescued(session) == {mine.job_id}
    with transaction(sessions) as session:
        assert rescued(session) == {theirs.job_id}


def test_a_rescue_waits_for_an_engine_if_it_holds_none(sessions: sessionmaker[Session]) -> None:
    lease = running(sessions)
    with sessions() as other, other.begin():
        other.execute(select(Engine.name).where(Engine.name == ENGINE).with_for_update())
        with pytest.raises(OperationalError), transaction(sessions) as session:
            rescued(session)
    assert job(sessions, lease).state == JobState.RUNNING
