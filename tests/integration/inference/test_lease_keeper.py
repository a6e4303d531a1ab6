"""One row that somebody has locked, or that cannot be written, holds up no other job of its worker."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, event, select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from jobs import database, leases, lifecycle
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Checkpoint, Job
from jobs.prompts.tokenizer import pack_ids
from jobs.settings import DatabaseSettings, JobSettings
from jobs.states import StopReason
from support import claim_one, output_of, register_engine, submit_one
from worker.inference.leases import LeaseKeeper
from worker.inference.run import Run, StopAsked

SETTINGS = JobSettings()


@pytest.fixture
def impatient(engine: Engine, database_settings: DatabaseSettings) -> Iterator[sessionmaker[Session]]:  # noqa: ARG001  # migrated
    """Sessions whose statements fail when they wait for a lock."""
    settings = database_settings.model_copy(update={"lock_timeout_seconds": 0.05})
    made = database.make_engine(settings, pool_size=2, name="keeper")
    yield database.make_sessions(made)
    made.dispose()


@pytest.fixture
def runs(sessions: sessionmaker[Session]) -> list[Run]:
    """Three running jobs whose leases are due, and which have generated something."""
    with transaction(sessions) as session:
        register_engine(session)
        for _ in range(3):
            submit_one(session)
        claimed = [claim_one(session) for _ in range(3)]
        session.execute(update(Job).values(lease_expires_at=Job.lease_expires_at - timedelta(seconds=20)))
    found = [Run(claim, valid_until=time.monotonic() + 40) for claim in claimed]
    for number, each in enumerate(found, 1):
        each.note_tokens(time.monotonic() - 1, num_tokens=number)
        each.snapshot = output_of(f"part {number}", number)
    return found


@pytest.fixture
def keeper(impatient: sessionmaker[Session], runs: list[Run]) -> LeaseKeeper:
    made = LeaseKeeper(impatient, SETTINGS)
    for each in runs:
        made.hold(each)
    return made


@contextmanager
def locked(sessions: sessionmaker[Session], run: Run) -> Iterator[None]:
    """Somebody is changing the job's row."""
    with transaction(sessions) as session:
        session.execute(select(Job.id).where(Job.id == run.lease.job_id).with_for_update())
        yield


def jobs_of(sessions: sessionmaker[Session], runs: list[Run]) -> list[Job]:
    with sessions() as session:
        return [session.get_one(Job, each.lease.job_id) for each in runs]


def ends_of(sessions: sessionmaker[Session], runs: list[Run]) -> list[datetime | None]:
    return [job.lease_expires_at for job in jobs_of(sessions, runs)]


def checkpoints(sessions: sessionmaker[Session]) -> set[object]:
    with sessions() as session:
        return set(session.scalars(select(Checkpoint.job_id)))


def test_a_locked_job_holds_up_no_renewal_stop_progress_or_checkpoint_of_the_others(
    sessions: sessionmaker[Session], runs: list[Run], keeper: LeaseKeeper
) -> None:
    blocked, *free = runs
    with transaction(sessions) as session:
        lifecycle.cancel(session, free[1].lease.job_id, tenant_id=DEFAULT_TENANT)
    before, valid_until = ends_of(sessions, runs), blocked.valid_until
    with locked(sessions, blocked):
        keeper.run_once()
    after = ends_of(sessions, runs)
    assert after[0] == before[0]
    assert all(new > old for old, new in zip(before[1:], after[1:], strict=True) if old and new)
    assert [each.valid_until > valid_until for each in runs] == [False, True, True]
    assert free[1].inbox.get_nowait() == StopAsked(StopReason.CANCEL)
    assert [job.completion_tokens for job in jobs_of(sessions, runs)] == [0, 2, 3]
    assert checkpoints(sessions) == {each.lease.job_id for each in free}
    assert set(keeper.runs()) == set(runs), "a lock is no loss"


def test_what_a_lock_held_up_is_done_in_the_next_round(
    sessions: sessionmaker[Session], runs: list[Run], keeper: LeaseKeeper
) -> None:
    before = ends_of(sessions, runs)
    with locked(sessions, runs[0]):
        keeper.run_once()
    keeper.run_once()
    after = ends_of(sessions, runs)
    assert all(new > old for old, new in zip(before, after, strict=True) if old and new)
    assert [job.completion_tokens for job in jobs_of(sessions, runs)] == [1, 2, 3]
    assert checkpoints(sessions) == {each.lease.job_id for each in runs}


def test_a_lease_that_stays_locked_has_no_other_renewed_before_its_time(
    sessions: sessionmaker[Session], runs: list[Run], keeper: LeaseKeeper
) -> None:
    with locked(sessions, runs[0]):
        keeper.run_once()
        renewed = ends_of(sessions, runs)
        for _ in range(3):
            keeper.run_once()
        assert ends_of(sessions, runs) == renewed
    keeper.run_once()
    after = ends_of(sessions, runs)
    assert after[1:] == renewed[1:]
    assert after[0] != renewed[0]


def test_a_lost_or_expired_lease_is_reported_to_its_slot_and_never_revived(
    sessions: sessionmaker[Session], runs: list[Run], keeper: LeaseKeeper
) -> None:
    lost, expired, kept = runs
    with transaction(sessions) as session:
        ending.release(session, lost.lease)
        past = Job.lease_expires_at - timedelta(minutes=5)
        session.execute(update(Job).where(Job.id == expired.lease.job_id).values(lease_expires_at=past))
    (end,) = ends_of(sessions, [expired])
    keeper.run_once()
    assert [each.inbox.get_nowait() for each in (lost, expired)] == [StopAsked(None)] * 2
    assert ends_of(sessions, [expired]) == [end]
    assert keeper.runs() == [kept]


def test_a_checkpoint_that_cannot_be_stored_holds_up_no_other(
    sessions: sessionmaker[Session], runs: list[Run], keeper: LeaseKeeper
) -> None:
    runs[0].snapshot = output_of("\x00", 1)
    for _ in range(2):
        keeper.run_once()
    assert checkpoints(sessions) == {each.lease.job_id for each in runs[1:]}
    runs[0].snapshot = output_of("better", 2)
    keeper.run_once()
    assert checkpoints(sessions) == {each.lease.job_id for each in runs}


def test_progress_of_many_jobs_is_reported_in_one_statement_and_keeps_the_first_time(
    sessions: sessionmaker[Session], runs: list[Run], keeper: LeaseKeeper
) -> None:
    keeper.run_once()
    first = [job.first_token_at for job in jobs_of(sessions, runs)]
    assert None not in first
    reports = [leases.JobProgress(each.lease, 10**6, timedelta(0)) for each in runs]
    with transaction(sessions) as session:
        assert leases.report_all(session, reports).keys() == {each.lease.lease_id for each in runs}
    jobs = jobs_of(sessions, runs)
    assert [job.first_token_at for job in jobs] == first
    assert [job.completion_tokens for job in jobs] == [job.max_tokens for job in jobs]


def test_claims_are_woken_once_a_job_has_read_what_a_queued_one_begins_with(
    sessions: sessionmaker[Session], runs: list[Run], keeper: LeaseKeeper
) -> None:
    read: list[str] = []
    keeper.on_read = lambda: read.append("read")
    for each in runs:
        each.on_first_token = keeper.loop.wake
    with transaction(sessions) as session:
        followed = [runs[0].lease.job_id, submit_one(session).id]
        session.execute(update(Job).where(Job.id.in_(followed)).values(family=b"document"))
    for _ in range(2):
        keeper.run_once()
    assert read == ["read"]
    assert {each.on_first_token for each in runs} == {None}


def test_the_checkpoints_of_many_jobs_are_saved_in_one_statement(
    sessions: sessionmaker[Session],
    impatient: sessionmaker[Session],
    runs: list[Run],
    keeper: LeaseKeeper,
) -> None:
    saving: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO checkpoints" in statement:
            saving.append(statement)

    engine = impatient.kw["bind"]
    event.listen(engine, "before_cursor_execute", note)
    try:
        keeper.run_once()
        keeper.run_once()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len(saving) == 1
    with sessions() as session:
        saved = {each.job_id: each for each in session.scalars(select(Checkpoint))}
    for number, each in enumerate(runs, 1):
        found, given = saved[each.lease.job_id], output_of(f"part {number}", number)
        assert (found.output, found.output_ids, found.num_tokens) == (given.text, pack_ids(given.ids), number)
