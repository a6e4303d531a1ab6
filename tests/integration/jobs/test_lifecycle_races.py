"""Concurrent moves of one job: each is a transaction, and none is lost."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Job, WebhookEvent
from jobs.states import JobState, StopReason
from jobs.transitions import Lease
from support import (
    ERROR,
    PATIENCE,
    claim_one,
    eventually,
    num_waiting_for_locks,
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


BACK: dict[str, Callable[[Session, Lease], object]] = {
    "release": lifecycle.release,
    "recount": lambda session, lease: lifecycle.recount(session, lease, prompt_tokens=120),
    "retry": lambda session, lease: lifecycle.retry(session, lease, ERROR, max_attempts=3, backoff=BACKOFF),
    "lose": lambda session, lease: lifecycle.release_after_engine_loss(session, lease, max_rescues=2),
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
