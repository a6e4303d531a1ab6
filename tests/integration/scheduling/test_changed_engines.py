"""Reservations and queues follow an engine that changes."""

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from claiming import claims
from jobs import fitting
from jobs.models import Reservation
from jobs.states import JobState
from support import (
    CAPACITY,
    ENGINE,
    POLICY,
    claim_one,
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


def test_a_queued_job_that_fits_none_of_several_engines_fails(session: Session) -> None:
    register_engine(session)
    job = submit_one(session, spec(90_000, max_tokens=30_000))
    register_engine(session, capacity=replace(CAPACITY, max_blocks=1000))  # room for 64,000 tokens
    register_engine(session, "engine-b", replace(CAPACITY, max_input_len=8_000))
    assert [each.id for each in fitting.reject_misfits(session)] == [job.id]
    session.refresh(job)
    assert job.state == JobState.FAILED
