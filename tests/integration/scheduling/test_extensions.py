"""A job that started ahead of another one grows only by what leaves that one's start where it is."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

import ending
from jobs import lifecycle
from jobs.engines import reservations
from jobs.models import DEFAULT_TENANT, Job, Reservation
from jobs.scheduling import growth
from jobs.scheduling.growth import Granted, Yielded
from jobs.scheduling.prediction import PredictionPolicy
from jobs.starting import Claim
from jobs.states import FinishReason
from support import CAPACITY, ENGINE, POLICY, claim_one, output_of, register_engine, spec, submit_one

# What the head of the queue leaves free of them is twice what the overtaker reserves at first.
POOL = replace(CAPACITY, max_blocks=1600)
WHOLE = replace(POLICY, prediction=None)  # an extension asks for all that is left


def blocks_of(session: Session, claim: Claim) -> int:
    return session.get_one(Reservation, claim.lease.lease_id, populate_existing=True).blocks


@pytest.fixture
def first(session: Session) -> Claim:
    """A job that holds what the head of the queue waits for."""
    register_engine(session, capacity=POOL)
    submit_one(session, spec(60_000, max_tokens=100))
    return claim_one(session)


@pytest.fixture
def head(session: Session, first: Claim) -> Job:  # noqa: ARG001  # it came before
    """A job that waits for nearly the whole pool, longer than any other."""
    job = submit_one(session, spec(96_000, max_tokens=2048))
    session.execute(
        update(Job).where(Job.id == job.id).values(created_at=Job.created_at - timedelta(hours=1))
    )
    return job


@pytest.fixture
def overtaker(session: Session, head: Job) -> Claim:
    """A small job with a long answer, which started ahead of the head."""
    small = submit_one(session, spec(100, max_tokens=30_000))
    claim = claim_one(session)
    assert claim.lease.job_id == small.id
    assert session.scalar(select(Reservation.overtakes).where(Reservation.job_id == small.id)) == head.id
    return claim


def extend(session: Session, claim: Claim) -> object:
    asked = [growth.Extension(claim.lease, claim.output_tokens)]
    return growth.extend(session, ENGINE, asked, policy=WHOLE)[0]


def test_an_extension_leaves_the_overtaken_job_the_blocks_that_it_will_start_with(
    session: Session, first: Claim, head: Job, overtaker: Claim
) -> None:
    reserved = blocks_of(session, overtaker)
    granted = extend(session, overtaker)
    assert isinstance(granted, Granted)
    assert overtaker.output_tokens < granted.tokens < 30_000
    assert reserved < blocks_of(session, overtaker) <= POOL.max_blocks - 1532  # of 98,048 tokens
    ending.complete(session, first.lease, output_of("x"), FinishReason.STOP)
    reservations.close(session, first.lease.lease_id)
    assert claim_one(session).lease.job_id == head.id


@pytest.mark.usefixtures("head")
def test_jobs_extended_together_continue_as_they_would_one_after_the_other(session: Session) -> None:
    short = replace(POLICY, prediction=PredictionPolicy(cold_tokens=500))
    for _ in range(2):
        submit_one(session, spec(100, max_tokens=30_000))
    small = [claim_one(session, policy=short) for _ in range(2)]
    for each in small:
        generated = {"completion_tokens": each.output_tokens}
        session.execute(update(Job).where(Job.id == each.lease.job_id).values(generated))
    before = session.begin_nested()
    alone = [extend(session, each) for each in small]
    before.rollback()
    asked = [growth.Extension(each.lease, each.output_tokens) for each in small]
    assert growth.extend(session, ENGINE, asked, policy=WHOLE) == alone
    assert [type(each) for each in alone] == [Granted, Yielded]  # both would keep the head waiting


def test_an_extension_is_free_again_once_the_overtaken_job_no_longer_waits(
    session: Session, first: Claim, head: Job, overtaker: Claim
) -> None:
    assert first.blocks + overtaker.blocks < POOL.max_blocks
    lifecycle.cancel(session, head.id, tenant_id=DEFAULT_TENANT)
    assert extend(session, overtaker) == Granted(30_000)


def test_an_extension_grants_what_its_blocks_hold_beside_the_constant_of_the_sequence(
    session: Session,
) -> None:
    pool = replace(CAPACITY, max_blocks=56, blocks_per_sequence=20)
    register_engine(session, capacity=pool)
    submit_one(session, spec(100, max_tokens=28))
    claim_one(session)  # 22 blocks
    submit_one(session, spec(100, max_tokens=2000))
    claim = claim_one(session, policy=replace(POLICY, prediction=PredictionPolicy(cold_tokens=156)))
    assert (blocks_of(session, claim), claim.output_tokens) == (4 + 20, 156)
    assert extend(session, claim) == Granted((4 + 10) * 64 - 100)
    assert blocks_of(session, claim) == 56 - 22
