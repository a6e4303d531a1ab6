"""Reservations and queues follow an engine that changes."""

import threading
from dataclasses import replace

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import database, deletion, submission
from jobs.database import database_now, transaction
from jobs.models import Job, Reservation, WebhookEvent
from jobs.prompts.store import CountedPrompt
from jobs.scheduling import claims
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from support import (
    CAPACITY,
    ENGINE,
    POLICY,
    WordCounter,
    claim_one,
    job_in,
    prepare_next,
    register_engine,
    spec,
    submit_one,
)

SMALLER_BLOCKS = replace(CAPACITY, max_blocks=4096, tokens_per_block=32)


def test_reservations_cover_the_same_tokens_when_the_engine_reports_another_block_size(
    session: Session,
) -> None:
    register_engine(session)
    submit_one(session, spec(90_000, max_tokens=2_000))
    claim_one(session)
    register_engine(session, capacity=SMALLER_BLOCKS)
    assert session.scalars(select(Reservation.blocks)).one() == 2_876  # of 32 tokens; it was 1,438 of 64
    submit_one(session, spec(60_000))
    assert claims.claim(session, ENGINE, POLICY) is None, "60,000 tokens beside 92,000 are over the pool"


def test_a_claim_does_not_wait_for_a_change_of_the_overtaken_head(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        submit_one(session, spec(90_000))
        claim_one(session)
        head = submit_one(session, spec(90_000))
        small = submit_one(session, spec())
    with transaction(sessions) as other:
        other.execute(select(Job.id).where(Job.id == head.id).with_for_update())
        with transaction(sessions) as session:
            session.execute(text("SET LOCAL lock_timeout = '500ms'"))
            assert claim_one(session).lease.job_id == small.id


def test_a_queued_job_that_fits_none_of_several_engines_fails(session: Session) -> None:
    register_engine(session)
    job = submit_one(session, spec(90_000, max_tokens=30_000))
    register_engine(session, capacity=replace(CAPACITY, max_blocks=1000))  # room for 64,000 tokens
    register_engine(session, "engine-b", replace(CAPACITY, max_input_len=8_000))
    assert [each.id for each in submission.reject_misfits(session)] == [job.id]
    session.refresh(job)
    assert job.state == JobState.FAILED


@pytest.mark.parametrize("limit", [1, 2])
def test_old_events_go_in_bounded_rounds(session: Session, limit: int) -> None:
    for _ in range(3):
        job_in(session, JobState.CANCELLED)
        session.execute(text("DELETE FROM reservations"))
    now = database_now(session)
    assert deletion.prune_events(session, before=now, limit=limit) == limit
    assert len(session.scalars(select(WebhookEvent.id)).all()) == 3 - limit


class SlowCounter(WordCounter):
    """Counts for longer than a transaction may idle here."""

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        threading.Event().wait(0.6)
        return super().count_prompt(canonical, limit=limit)


def test_a_prompt_that_takes_long_to_count_is_counted(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    with transaction(sessions) as session:
        waiting = submit_one(session, spec(None))
    engine = database.make_engine(
        database_settings.model_copy(update={"idle_in_transaction_timeout_seconds": 0.2}), pool_size=1
    )
    job = prepare_next(database.make_sessions(engine), SlowCounter())
    engine.dispose()
    assert job is not None
    assert (job.id, job.state) == (waiting.id, JobState.QUEUED)
