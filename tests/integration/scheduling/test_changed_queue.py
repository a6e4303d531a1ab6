"""Claims from a queue that changes: no waiting job is overlooked, none starts twice or too soon."""

from collections import Counter
from datetime import timedelta
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming import claims
from claiming.claims import FreedSlot
from jobs.database import transaction
from jobs.engines import served_tokens
from jobs.engines.capacity import Capacity
from jobs.models import Job
from jobs.scheduling.queue_rows import MAX_TENANTS
from jobs.starting import Claim
from jobs.states import FinishReason
from support import (
    ENGINE,
    ERROR,
    MODEL,
    POLICY,
    claim_one,
    new_tenant,
    output_of,
    register_engine,
    spec,
    submit_one,
)

SMALL = Capacity(
    max_batch_size=4, max_blocks=512, tokens_per_block=64, max_input_len=8000, max_seq_len=16_000
)


LARGE = Capacity(
    max_batch_size=32, max_blocks=4096, tokens_per_block=64, max_input_len=8000, max_seq_len=16_000
)


def complete(session: Session, claimed: Claim) -> FreedSlot:
    assert ending.complete(session, claimed.lease, output_of("x"), FinishReason.STOP)
    return FreedSlot(claimed.lease.lease_id, 3)


def test_a_new_tenant_gets_its_share_of_an_engine_that_is_always_full(session: Session) -> None:
    register_engine(session)
    old = new_tenant(session)
    for _ in range(40):
        submit_one(session, tenant_id=old)
    running = [claim_one(session) for _ in range(4)]
    new = new_tenant(session)
    for _ in range(40):
        submit_one(session, tenant_id=new)
    owners: Counter[UUID] = Counter()
    for _ in range(20):
        ended = [complete(session, running.pop(0))]
        (found,) = claims.claim_all(session, ENGINE, POLICY, ended=ended).claims
        owners[found.job.tenant_id] += 1
        running.append(found)
    assert min(owners[old], owners[new]) >= 8  # nearly half: reservations of equal jobs are settled later
    assert served_tokens.served(session, new, MODEL) > 0


def test_tenants_whose_jobs_fit_only_another_engine_keep_no_other_from_this_one(session: Session) -> None:
    register_engine(session)
    register_engine(session, "small", SMALL)
    for _ in range(MAX_TENANTS):
        submit_one(session, spec(50_000), tenant_id=new_tenant(session))
    last = submit_one(session, spec(100), tenant_id=new_tenant(session))
    assert claim_one(session, "small").lease.job_id == last.id


def test_a_job_that_failed_since_it_was_read_waits_for_its_retry(session: Session) -> None:
    register_engine(session)
    register_engine(session, "engine-b")
    job = submit_one(session)
    start = claims.choose(session, ENGINE, POLICY)
    elsewhere = claim_one(session, "engine-b")
    ending.retry(session, elsewhere.lease, ERROR, max_attempts=3, backoff=timedelta(minutes=5))
    assert start() == []
    session.execute(update(Job).where(Job.id == job.id).values(run_after=None))
    assert claim_one(session).lease.job_id == job.id


def test_a_job_that_ran_since_it_was_read_pays_for_its_prompt_once(session: Session) -> None:
    register_engine(session)
    register_engine(session, "engine-b")
    tenant_id = new_tenant(session)
    submit_one(session, spec(1000), tenant_id=tenant_id)
    start = claims.choose(session, ENGINE, POLICY)
    elsewhere = claim_one(session, "engine-b")
    ending.release(session, elsewhere.lease)
    ended = [FreedSlot(elsewhere.lease.lease_id, 0)]
    claims.claim_all(session, "engine-b", POLICY, ended=ended, limit=0)
    assert start() == [], "its prompt was charged"
    found = claim_one(session)
    assert served_tokens.served(session, tenant_id, MODEL) == 1000 + found.output_tokens


def test_a_claim_passes_over_what_another_engine_has_started_since_it_read_the_queue(
    session: Session,
) -> None:
    register_engine(session)
    register_engine(session, "engine-b", LARGE)
    jobs = [submit_one(session).id for _ in range(60)]
    start = claims.choose(session, ENGINE, POLICY)
    theirs = claims.claim_all(session, "engine-b", POLICY).claims
    assert [each.lease.job_id for each in theirs] == jobs[:32]
    assert [each.lease.job_id for each in start()] == jobs[32:36]


def test_engines_that_claim_at_once_wait_for_no_other_and_start_no_job_twice(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        register_engine(session, "engine-b", LARGE)
        jobs = [submit_one(session).id for _ in range(60)]
        claims.claim_all(session, ENGINE, POLICY, limit=0)  # the tenant's account is active
    with transaction(sessions) as first:
        theirs = claims.claim_all(first, "engine-b", POLICY).claims
        with transaction(sessions) as second:
            result = claims.claim_all(second, ENGINE, POLICY)
    assert [each.lease.job_id for each in theirs] == jobs[:32]
    assert [each.lease.job_id for each in result.claims] == jobs[32:36]
    assert result.missed


def test_equal_jobs_start_in_order(session: Session) -> None:
    register_engine(session)
    jobs = [submit_one(session).id for _ in range(6)]
    found = claims.claim_all(session, ENGINE, POLICY).claims
    assert [each.lease.job_id for each in found] == jobs[:4]
