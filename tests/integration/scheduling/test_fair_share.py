"""Claims serve tenants in proportion to their weights, see small, large and urgent jobs, and lanes."""

import itertools
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

import ending
from claiming import claims
from claiming.claims import FreedSlot
from jobs import leases, lifecycle
from jobs.database import database_now
from jobs.engines import reservations, served_tokens
from jobs.ids import uuid7
from jobs.models import Job, Reservation, Tenant
from jobs.scheduling.sizing import ClaimPolicy
from jobs.starting import Claim
from jobs.states import FinishReason, JobState, Lane, StopReason
from support import ENGINE, MODEL, POLICY, claim_one, output_of, register_engine, spec, submit_one

WHOLE = ClaimPolicy(lease=POLICY.lease, max_rescues=POLICY.max_rescues, prediction=None)


def new_tenant(session: Session, *, weight: float = 1) -> UUID:
    tenant = Tenant(id=uuid7(), name=f"tenant {uuid7()}", weight=weight)
    session.add(tenant)
    session.flush()
    return tenant.id


def served(session: Session, tenant_id: UUID) -> float:
    return served_tokens.served(session, tenant_id, MODEL)


def finish(session: Session, claimed: Claim, num_tokens: int, *, cached: int | None = None) -> None:
    output = replace(output_of("x", num_tokens), cached_tokens=cached)
    assert ending.complete(session, claimed.lease, output, FinishReason.STOP)
    reservations.close(session, claimed.lease.lease_id)


@pytest.mark.parametrize("num_engines", [1, 4])
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_tenant_with_a_tenth_of_the_backlog_gets_its_share_of_the_tokens(
    session: Session, weight: float, num_engines: int
) -> None:
    names = [f"engine-{number}" for number in range(num_engines)]
    for name in names:
        register_engine(session, name)
    large, small = new_tenant(session), new_tenant(session, weight=weight)
    for number in range(300):
        submit_one(session, spec(1000 + 37 * (number % 50), max_tokens=200), tenant_id=large)
    for number in range(30):
        submit_one(session, spec(1000 + 53 * (number % 30), max_tokens=200), tenant_id=small)
    tokens: Counter[UUID] = Counter()
    for name in itertools.cycle(names):
        claimed = claim_one(session, name)
        tokens[claimed.job.tenant_id] += (claimed.job.prompt_tokens or 0) + 150
        finish(session, claimed, 150)
        if not session.scalar(
            select(func.count()).where(Job.tenant_id == small, Job.state == JobState.QUEUED)
        ):
            break
    share = tokens[small] / tokens.total()
    assert share == pytest.approx(weight / (1 + weight), rel=0.1)


def test_an_account_holds_what_was_produced_not_what_was_reserved(session: Session) -> None:
    register_engine(session)
    tenant_id = new_tenant(session, weight=2)
    submit_one(session, spec(1000, max_tokens=500), tenant_id=tenant_id)
    claimed = claim_one(session)
    assert served(session, tenant_id) == (1000 + claimed.output_tokens) / 2
    finish(session, claimed, 40)
    assert served(session, tenant_id) == 1040 / 2


@pytest.mark.parametrize(("cached", "paid"), [(None, 1040), (0, 1040), (640, 400), (1000, 40)])
def test_an_account_pays_for_what_the_engine_computed_of_a_prompt(
    session: Session, cached: int | None, paid: int
) -> None:
    register_engine(session)
    tenant_id = new_tenant(session, weight=2)
    submit_one(session, spec(1000, max_tokens=500), tenant_id=tenant_id)
    finish(session, claim_one(session), 40, cached=cached)
    assert served(session, tenant_id) == paid / 2


def test_a_job_in_two_runs_keeps_what_the_engine_had_of_its_prompt_at_the_first(session: Session) -> None:
    register_engine(session)
    tenant_id = new_tenant(session)
    job = submit_one(session, spec(1000, max_tokens=500), tenant_id=tenant_id)
    first = claim_one(session)
    ending.release(session, first.lease, replace(output_of("x", 120), cached_tokens=600))
    reservations.close(session, first.lease.lease_id)
    assert served(session, tenant_id) == 400 + 120
    again = claim_one(session)
    assert (first.is_first, again.is_first) == (True, False)
    finish(session, again, 300)
    assert served(session, tenant_id) == 400 + 300
    session.refresh(job)
    assert job.cached_tokens == 600


def test_a_job_in_two_runs_pays_for_its_prompt_once_and_for_each_token_once(session: Session) -> None:
    register_engine(session)
    tenant_id = new_tenant(session)
    submit_one(session, spec(1000, max_tokens=500), tenant_id=tenant_id)
    first = claim_one(session)
    ending.release(session, first.lease, output_of("x", 120))
    reservations.close(session, first.lease.lease_id)
    assert served(session, tenant_id) == 1120
    again = claim_one(session)
    assert again.job.completion_tokens == 120
    finish(session, again, 300)
    assert served(session, tenant_id) == 1300


def test_a_rescued_job_is_charged_for_its_checkpoint_alone(session: Session) -> None:
    register_engine(session)
    tenant_id = new_tenant(session)
    submit_one(session, spec(1000, max_tokens=500), tenant_id=tenant_id)
    claimed = claim_one(session)
    ending.checkpoint(session, claimed.lease, output_of("x", 30))
    ending.report_progress(session, claimed.lease, completion_tokens=70)
    later = database_now(session) + timedelta(hours=1)
    assert len(lifecycle.rescue(session, now=later, max_rescues=2)) == 1
    assert served(session, tenant_id) == 1030
    (drains,) = session.scalars(select(Reservation)).all()
    reservations.drained(session, [drains.lease_id])
    assert served(session, tenant_id) == 1030


def test_a_tenant_that_was_idle_gets_no_credit_for_it(session: Session) -> None:
    register_engine(session)
    busy, idle = new_tenant(session), new_tenant(session)
    submit_one(session, spec(500), tenant_id=idle)
    finish(session, claim_one(session), 3)
    for _ in range(20):
        submit_one(session, spec(5000), tenant_id=busy)
    for _ in range(10):
        finish(session, claim_one(session), 3)
    for _ in range(20):
        submit_one(session, spec(5000), tenant_id=idle)
    owners = []
    for _ in range(10):
        claimed = claim_one(session)
        owners.append(claimed.job.tenant_id)
        finish(session, claimed, 3)
    assert Counter(owners) == {busy: 5, idle: 5}


def test_the_head_of_a_lesser_served_tenant_goes_before_a_longer_waiting_one(session: Session) -> None:
    register_engine(session)
    first, second = new_tenant(session), new_tenant(session)
    for _ in range(3):
        submit_one(session, spec(100), tenant_id=first)
    submit_one(session, spec(100), tenant_id=second)
    owners = [claim_one(session).job.tenant_id for _ in range(4)]
    assert Counter(owners[:2]) == {first: 1, second: 1}


def test_every_size_of_every_tenant_is_seen_behind_a_long_queue(session: Session) -> None:
    register_engine(session)
    many = [new_tenant(session) for _ in range(12)]
    for tenant_id in many:
        for _ in range(30):
            submit_one(session, spec(90_000, max_tokens=64), tenant_id=tenant_id)
    last = submit_one(session, spec(300), tenant_id=many[-1])
    assert (claim_one(session).job.prompt_tokens, claim_one(session).lease.job_id) == (90_000, last.id)


def test_a_job_whose_window_nears_its_end_goes_first_within_its_tenant(session: Session) -> None:
    register_engine(session)
    for _ in range(3):
        submit_one(session, spec(100))
    urgent = submit_one(session, spec(100, window=timedelta(hours=1)))
    claim_one(session)
    assert session.get_one(Job, urgent.id).state == JobState.QUEUED
    ends = database_now(session) + timedelta(minutes=10)
    session.execute(
        update(Job).where(Job.id == urgent.id).values(expires_at=ends, created_at=ends - timedelta(hours=1))
    )
    assert claim_one(session).lease.job_id == urgent.id


def test_a_job_whose_window_has_ended_is_not_claimed(session: Session) -> None:
    register_engine(session)
    late, next_one = (submit_one(session, spec(100, window=timedelta(hours=1))) for _ in range(2))
    ended = database_now(session)
    session.execute(
        update(Job).where(Job.id == late.id).values(expires_at=ended, created_at=ended - timedelta(hours=1))
    )
    assert claim_one(session).lease.job_id == next_one.id
    assert claims.claim(session, ENGINE, POLICY) is None


def test_the_interactive_lane_goes_first_but_not_on_the_last_slot(session: Session) -> None:
    register_engine(session)
    batch = submit_one(session, spec(100))
    talks = [submit_one(session, spec(100, lane=Lane.INTERACTIVE)) for _ in range(5)]
    order = [claim_one(session).lease.job_id for _ in range(4)]
    assert order == [*(each.id for each in talks[:3]), batch.id]


def stream_for_long(session: Session, claimed: Claim, num_tokens: int = 300) -> None:
    ending.report_progress(session, claimed.lease, completion_tokens=num_tokens)


def look(session: Session) -> tuple[Claim | None, bool]:
    """The next job, if it may start, and whether batch jobs were asked to leave."""
    found = claims.claim_all(session, ENGINE, POLICY, limit=1)
    return next(iter(found.claims), None), found.asked_for_room


def test_a_full_engine_makes_room_for_somebody_who_waits_for_an_answer(session: Session) -> None:
    register_engine(session)
    for size in (8000, 500, 3000, 20_000):
        submit_one(session, spec(size, max_tokens=2000))
    running = [claim_one(session) for _ in range(4)]
    for each in running:
        stream_for_long(session, each)
    assert look(session) == (None, False)
    asking = submit_one(session, spec(100, lane=Lane.INTERACTIVE))
    assert look(session) == (None, True)
    assert look(session) == (None, False)  # asked once
    reasons = leases.read_stops(session, [each.lease for each in running])
    (leaving,) = [each for each in running if reasons[each.lease.lease_id] == StopReason.PREEMPT]
    assert leaving.job.prompt_tokens == 500
    ending.release_preempted(session, leaving.lease, output_of("so far", 301))
    (found,) = claims.claim_all(
        session, ENGINE, POLICY, ended=[FreedSlot(leaving.lease.lease_id, 301)], limit=1
    ).claims
    assert found.lease.job_id == asking.id
    finish(session, found, 3)
    back = claim_one(session)
    assert back.lease.job_id == leaving.lease.job_id
    job = session.get_one(Job, back.job.id, populate_existing=True)
    assert (job.stop_reason, job.num_preemptions, back.job.completion_tokens) == (None, 1, 301)
