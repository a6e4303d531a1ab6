from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

import ending
from jobs import deletion, fitting, leases, lifecycle, queries, submission
from jobs.database import database_now
from jobs.engines import reservations
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, Job, PromptText, Reservation, Result, WebhookEvent
from jobs.states import FinishReason, JobState, Lane, StopReason
from jobs.submission import Submitter
from jobs.transitions import Lease
from support import (
    CAPACITY,
    ERROR,
    claim_one,
    job_in,
    output_of,
    prepare_next,
    register_engine,
    spec,
    submit_one,
)

RETRY_WAIT = timedelta(seconds=2)


def running(session: Session, **fields: Any) -> Lease:  # noqa: ANN401  # of each field's type
    register_engine(session)
    submit_one(session, spec(**fields))
    return claim_one(session).lease


def state_of(session: Session, lease: Lease) -> str:
    return session.scalars(select(Job.state).where(Job.id == lease.job_id)).one()


def test_a_completed_job_has_its_result_and_one_event(session: Session) -> None:
    lease = running(session)
    assert ending.complete(session, lease, output_of("the summary"), FinishReason.STOP)
    assert session.get_one(Result, lease.job_id).output == "the summary"
    assert session.scalars(select(WebhookEvent.type)).all() == ["job.completed"]


@pytest.mark.parametrize("verb", ["complete", "fail", "end", "release", "retry", "progress"])
def test_a_stale_worker_can_write_nothing(session: Session, verb: str) -> None:
    lease = running(session)
    rescued = lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
    assert [job.id for job in rescued] == [lease.job_id]
    reservations.drained(session, [lease.lease_id])
    current = claim_one(session).lease
    assert current.job_id == lease.job_id
    before = dict(vars(session.get_one(Job, lease.job_id, populate_existing=True)))
    stale = {
        "complete": lambda: ending.complete(session, lease, output_of("zombie"), FinishReason.STOP),
        "fail": lambda: ending.fail(session, lease, ERROR),
        "end": lambda: ending.finish_stopped(session, lease, StopReason.CANCEL, output_of("zombie")),
        "release": lambda: ending.release(session, lease),
        "retry": lambda: ending.retry(session, lease, ERROR, max_attempts=3, backoff=RETRY_WAIT),
        "progress": lambda: ending.report_progress(session, lease, completion_tokens=7),
    }[verb]()
    assert not stale
    assert leases.renew(session, [lease], lease=timedelta(seconds=60)) == set()
    after = vars(session.get_one(Job, lease.job_id, populate_existing=True))
    changed = {name for name in before if not name.startswith("_") and before[name] != after[name]}
    assert changed == set()
    assert session.scalar(select(func.count()).select_from(Result)) == 0


def test_the_end_of_a_lost_run_beside_that_of_the_present_one_changes_nothing(session: Session) -> None:
    stale = running(session)
    lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
    reservations.drained(session, [stale.lease_id])
    current = claim_one(session).lease
    ends = [ending.completed(current, output_of("present")), ending.completed(stale, output_of("zombie"))]
    for each in (ends, ends[::-1]):
        stored = lifecycle.finish(session, each)
        assert stored[current.lease_id].state == (JobState.COMPLETED if each is ends else None)
        assert stored[stale.lease_id].state is None
    assert session.get_one(Result, current.job_id).output == "present"
    assert session.scalars(select(WebhookEvent.type)).all() == ["job.completed"]


def test_retry_spends_an_attempt_waits_and_fails_after_the_last(session: Session) -> None:
    lease = running(session)
    assert ending.retry(session, lease, ERROR, max_attempts=2, backoff=RETRY_WAIT) == JobState.QUEUED
    reservations.close(session, lease.lease_id)
    job = session.get_one(Job, lease.job_id, populate_existing=True)
    assert (job.attempt, job.lease_id) == (1, None)
    assert job.run_after is not None
    session.execute(update(Job).values(run_after=None))
    second = claim_one(session).lease
    assert ending.retry(session, second, ERROR, max_attempts=2, backoff=RETRY_WAIT) == JobState.FAILED
    job = session.get_one(Job, lease.job_id, populate_existing=True)
    assert (job.state, job.attempt, job.error) == ("failed", 2, ERROR)


def test_release_gives_the_attempt_back(session: Session) -> None:
    lease = running(session)
    ending.report_progress(session, lease, completion_tokens=9)
    assert ending.release(session, lease)
    job = session.get_one(Job, lease.job_id, populate_existing=True)
    assert (job.state, job.attempt, job.completion_tokens, job.first_token_at) == ("queued", 0, 0, None)


@pytest.mark.parametrize("state", [JobState.PREPARING, JobState.QUEUED])
def test_a_job_that_does_not_run_is_cancelled_at_once(session: Session, state: JobState) -> None:
    job = job_in(session, state)
    assert lifecycle.cancel(session, job.id, tenant_id=DEFAULT_TENANT).state == JobState.CANCELLED


def test_a_running_job_is_asked_to_stop_and_its_worker_ends_it(session: Session) -> None:
    lease = running(session)
    job = lifecycle.cancel(session, lease.job_id, tenant_id=DEFAULT_TENANT)
    assert job.state == JobState.RUNNING
    assert leases.read_stops(session, [lease]) == {lease.lease_id: StopReason.CANCEL}
    assert ending.finish_stopped(session, lease, StopReason.CANCEL, output_of("part", 2))
    assert state_of(session, lease) == JobState.CANCELLED
    assert session.get_one(Result, lease.job_id).output == "part"


def test_cancelling_twice_or_after_the_end_changes_nothing(session: Session) -> None:
    job = job_in(session, JobState.COMPLETED)
    assert lifecycle.cancel(session, job.id, tenant_id=DEFAULT_TENANT).state == JobState.COMPLETED
    assert session.scalar(select(func.count()).select_from(WebhookEvent)) == 1


def test_a_cancel_outweighs_an_expiry_but_not_the_other_way_round(session: Session) -> None:
    lease = running(session, window=timedelta(hours=1))
    later = database_now(session) + timedelta(hours=2)
    assert lifecycle.expire(session, now=later) == 1
    assert leases.read_stops(session, [lease])[lease.lease_id] == StopReason.EXPIRE
    lifecycle.cancel(session, lease.job_id, tenant_id=DEFAULT_TENANT)
    lifecycle.expire(session, now=later)
    assert leases.read_stops(session, [lease])[lease.lease_id] == StopReason.CANCEL


def test_a_waiting_job_expires_at_the_end_of_its_window(session: Session) -> None:
    job = submit_one(session, spec(window=timedelta(hours=1)))
    now = database_now(session)
    assert lifecycle.expire(session, now=now) == 0
    assert lifecycle.expire(session, now=now + timedelta(hours=1, seconds=1)) == 1
    session.refresh(job)
    assert job.state == JobState.EXPIRED


def test_rescue_takes_only_from_silent_workers_and_lets_their_reservations_drain(session: Session) -> None:
    running(session)
    assert lifecycle.rescue(session, now=database_now(session), max_rescues=2) == []
    (job,) = lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
    session.refresh(job)
    assert (job.state, job.attempt, job.num_rescues, job.lease_id) == ("queued", 0, 1, None)
    assert session.scalars(select(Reservation.state)).all() == ["draining"]


def test_a_job_that_outlives_no_worker_fails_in_the_end(session: Session) -> None:
    lease = running(session)
    session.execute(update(Job).values(num_rescues=2))
    lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
    job = session.get_one(Job, lease.job_id, populate_existing=True)
    assert (job.state, job.error and job.error["code"]) == ("failed", "worker_lost")


def test_rescue_finishes_a_wanted_cancel(session: Session) -> None:
    lease = running(session)
    lifecycle.cancel(session, lease.job_id, tenant_id=DEFAULT_TENANT)
    lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
    assert state_of(session, lease) == JobState.CANCELLED


def test_equal_prompts_share_a_text_and_deleting_one_job_keeps_it(session: Session) -> None:
    first = submit_one(session, spec(10, prompt="same words"))
    second = submit_one(session, spec(10, prompt="same words"))
    assert first.text_id == second.text_id
    for job in (first, second):
        lifecycle.cancel(session, job.id, tenant_id=DEFAULT_TENANT)
    assert deletion.remove(session, first.id, tenant_id=DEFAULT_TENANT)
    assert session.scalar(select(func.count()).select_from(PromptText)) == 1
    assert deletion.remove(session, second.id, tenant_id=DEFAULT_TENANT)
    assert session.scalar(select(func.count()).select_from(PromptText)) == 0


def test_a_job_that_never_fits_fails_with_the_three_numbers(session: Session) -> None:
    job = submit_one(session, spec(97_000, max_tokens=100))
    assert job.state == JobState.FAILED
    assert job.error is not None
    assert job.error["code"] == "context_length_exceeded"
    assert job.error["details"] == {
        "prompt_tokens": 97_000,
        "max_tokens": 100,
        "limit": 96_000,
        "limit_name": "max_input_len",
    }
    assert session.scalars(select(WebhookEvent.type)).all() == ["job.failed"]


def test_preparing_counts_the_prompt_once_for_equal_texts(session: Session) -> None:
    register_engine(session)
    for _ in range(2):
        submit_one(session, spec(None, prompt="one two three"))
    for _ in range(2):
        job = prepare_next(session)
        assert job is not None
        assert (job.state, job.prompt_tokens) == (JobState.QUEUED, 3)
    assert prepare_next(session) is None
    assert session.scalars(select(PromptText.num_tokens)).all() == [3]


def test_queued_jobs_fail_when_every_engine_came_back_too_small(session: Session) -> None:
    job = submit_one(session, spec(90_000))
    register_engine(session)
    assert fitting.reject_misfits(session) == []
    smaller = type(CAPACITY)(
        max_batch_size=4, max_blocks=512, tokens_per_block=64, max_input_len=96_000, max_seq_len=131_072
    )
    register_engine(session, capacity=smaller)
    assert [each.id for each in fitting.reject_misfits(session)] == [job.id]
    session.refresh(job)
    assert job.state == JobState.FAILED


def test_pruning_takes_old_jobs_with_their_texts_and_leaves_young_ones(session: Session) -> None:
    job = job_in(session, JobState.COMPLETED)
    assert job.finalized_at is not None
    assert deletion.prune_jobs(session, before=job.finalized_at) == 0
    assert deletion.prune_jobs(session, before=job.finalized_at + timedelta(seconds=1)) == 1
    assert session.scalar(select(func.count()).select_from(PromptText)) == 0


def test_unfinished_jobs_are_counted_by_state(session: Session) -> None:
    submit_one(session, spec(None))
    submit_one(session, spec(100, max_tokens=10))
    assert queries.count_by_state(session) == {"blocked": 0, "preparing": 1, "queued": 1, "running": 0}
    (backlog,) = queries.backlogs(session)
    assert (backlog.lane, backlog.num_jobs, backlog.num_tokens) == ("batch", 1, 110)


def test_a_new_job_is_what_the_database_has(session: Session) -> None:
    given = [
        spec(),
        spec(None),
        spec(10**6),
        spec(
            rank=1,
            lane=Lane.INTERACTIVE,
            sampling={"temperature": 0.5, "stop": ["a", "b"]},
            custom_id="mine",
            metadata={"a": "b"},
            webhook_url="https://example.com/",
            webhook_secret=b"sealed",
            webhook_includes_output=True,
            window=timedelta(hours=1),
            batch_id=uuid7(),
            batch_line=3,
        ),
    ]
    jobs = submission.submit(session, given, Submitter(DEFAULT_TENANT, CAPACITY))
    names = Job.__mapper__.attrs.keys()
    before = [{name: getattr(job, name) for name in names} for job in jobs]
    session.expire_all()
    assert [{name: getattr(job, name) for name in names} for job in jobs] == before
    assert [job.state for job in jobs] == ["queued", "preparing", "failed", "queued"]


def test_jobs_that_come_a_minute_after_the_first_of_their_request_were_submitted_later(
    session: Session,
) -> None:
    us, now = Submitter(DEFAULT_TENANT, CAPACITY), database_now(session)
    for age, is_together in ((55, True), (65, False)):
        since = now - timedelta(seconds=age)
        (job,) = submission.submit(session, [spec(window=timedelta(hours=1))], replace(us, since=since))
        assert (job.created_at == since) == is_together
        assert job.expires_at is not None
        assert job.expires_at - now >= timedelta(hours=1), "its window begins when it is stored"
