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
from jobs.settings import DatabaseSettings, JobSettings
from jobs.states import StopReason
from support import claim_one, output_of, register_engine, submit_one
from worker.inference.leases import LeaseKeeper, RunningJob, StopAsked

SETTINGS = JobSettings()


@pytest.fixture
def impatient(engine: Engine, database_settings: DatabaseSettings) -> Iterator[sessionmaker[Session]]:  # noqa: ARG001  # migrated
    """Sessions whose statements fail when they wait for a lock."""
    settings = database_settings.model_copy(update={"lock_timeout_seconds": 0.05})
    made = database.make_engine(settings, pool_size=2, name="keeper")
    yield database.make_sessions(made)
    made.dispose()


@pytest.fixture
def running(sessions: sessionmaker[Session]) -> list[RunningJob]:
    """Three running jobs whose leases are due, and which have generated something."""
    with transaction(sessions) as session:
        register_engine(session)
        for _ in range(3):
            submit_one(session)
        claimed = [claim_one(session).lease for _ in range(3)]
        session.execute(update(Job).values(lease_expires_at=Job.lease_expires_at - timedelta(seconds=20)))
    found = [RunningJob(lease, valid_until=time.monotonic() + 40) for lease in claimed]
    for number, each in enumerate(found, 1):
        each.note_tokens(time.monotonic() - 1, num_tokens=number)
        each.snapshot = output_of(f"part {number}", number)
    return found


@pytest.fixture
def keeper(impatient: sessionmaker[Session], running: list[RunningJob]) -> LeaseKeeper:
    made = LeaseKeeper(impatient, SETTINGS)
    for each in running:
        made.hold(each)
    return made


@contextmanager
def locked(sessions: sessionmaker[Session], running: RunningJob) -> Iterator[None]:
    """Somebody is changing the job's row."""
    with transaction(sessions) as session:
        session.execute(select(Job.id).where(Job.id == running.lease.job_id).with_for_update())
        yield


def jobs_of(sessions: sessionmaker[Session], running: list[RunningJob]) -> list[Job]:
    with sessions() as session:
        return [session.get_one(Job, each.lease.job_id) for each in running]


def ends_of(sessions: sessionmaker[Session], running: list[RunningJob]) -> list[datetime | None]:
    return [job.lease_expires_at for job in jobs_of(sessions, running)]


def checkpoints(sessions: sessionmaker[Session]) -> set[object]:
    with sessions() as session:
        return set(session.scalars(select(Checkpoint.job_id)))


def test_a_locked_job_holds_up_no_renewal_stop_progress_or_checkpoint_of_the_others(
    sessions: sessionmaker[Session], running: list[RunningJob], keeper: LeaseKeeper
) -> None:
    blocked, *free = running
    with transaction(sessions) as session:
        lifecycle.cancel(session, free[1].lease.job_id, tenant_id=DEFAULT_TENANT)
    before, valid_until = ends_of(sessions, running), blocked.valid_until
    with locked(sessions, blocked):
        keeper.run_once()
    after = ends_of(sessions, running)
    assert after[0] == before[0]
    assert all(new > old for old, new in zip(before[1:], after[1:], strict=True) if old and new)
    assert [each.valid_until > valid_until for each in running] == [False, True, True]
    assert free[1].inbox.get_nowait() == StopAsked(StopReason.CANCEL)
    assert [job.completion_tokens for job in jobs_of(sessions, running)] == [0, 2, 3]
    assert checkpoints(sessions) == {each.lease.job_id for each in free}
    assert set(keeper.running()) == set(running), "a lock is no loss"


def test_what_a_lock_held_up_is_done_in_the_next_round(
    sessions: sessionmaker[Session], running: list[RunningJob], keeper: LeaseKeeper
) -> None:
    before = ends_of(sessions, running)
    with locked(sessions, running[0]):
        keeper.run_once()
    keeper.run_once()
    after = ends_of(sessions, running)
    assert all(new > old for old, new in zip(before, after, strict=True) if old and new)
    assert [job.completion_tokens for job in jobs_of(sessions, running)] == [1, 2, 3]
    assert checkpoints(sessions) == {each.lease.job_id for each in running}


def test_a_lease_that_stays_locked_has_no_other_renewed_before_its_time(
    sessions: sessionmaker[Session], running: list[RunningJob], keeper: LeaseKeeper
) -> None:
    with locked(sessions, running[0]):
        keeper.run_once()
        renewed = ends_of(sessions, running)
        for _ in range(3):
            keeper.run_once()
        assert ends_of(sessions, running) == renewed
    keeper.run_once()
    after = ends_of(sessions, running)
    assert after[1:] == renewed[1:]
    assert after[0] != renewed[0]


def test_a_lost_or_expired_lease_is_reported_to_its_slot_and_never_revived(
    sessions: sessionmaker[Session], running: list[RunningJob], keeper: LeaseKeeper
) -> None:
    lost, expired, kept = running
    with transaction(sessions) as session:
        ending.release(session, lost.lease)
        past = Job.lease_expires_at - timedelta(minutes=5)
        session.execute(update(Job).where(Job.id == expired.lease.job_id).values(lease_expires_at=past))
    (end,) = ends_of(sessions, [expired])
    keeper.run_once()
    assert [each.inbox.get_nowait() for each in (lost, expired)] == [StopAsked(None)] * 2
    assert ends_of(sessions, [expired]) == [end]
    assert keeper.running() == [kept]


def test_a_checkpoint_that_cannot_be_stored_holds_up_no_other(
    sessions: sessionmaker[Session], running: list[RunningJob], keeper: LeaseKeeper
) -> None:
    running[0].snapshot = output_of("\x00", 1)
    for _ in range(2):
        keeper.run_once()
    assert checkpoints(sessions) == {each.lease.job_id for each in running[1:]}
    running[0].snapshot = output_of("better", 2)
    keeper.run_once()
    assert checkpoints(sessions) == {each.lease.job_id for each in running}


def test_progress_of_many_jobs_is_reported_in_one_statement_and_keeps_the_first_time(
    sessions: sessionmaker[Session], running: list[RunningJob], keeper: LeaseKeeper
) -> None:
    keeper.run_once()
    first = [job.first_token_at for job in jobs_of(sessions, running)]
    assert None not in first
    told = [leases.JobProgress(each.lease, 10**6, timedelta(0)) for each in running]
    with transaction(sessions) as session:
        assert leases.report_all(session, told).keys() == {each.lease.lease_id for each in running}
    jobs = jobs_of(sessions, running)
    assert [job.first_token_at for job in jobs] == first
    assert [job.completion_tokens for job in jobs] == [job.max_tokens for job in jobs]


def test_claims_are_woken_once_a_job_has_read_what_a_queued_one_begins_with(
    sessions: sessionmaker[Session], running: list[RunningJob], keeper: LeaseKeeper
) -> None:
    read: list[str] = []
    keeper.on_read = lambda: read.append("read")
    for each in running:
        each.on_first_token = keeper.loop.wake
    with transaction(sessions) as session:
        followed = [running[0].lease.job_id, submit_one(session).id]
        session.execute(update(Job).where(Job.id.in_(followed)).values(family=b"document"))
    for _ in range(2):
        keeper.run_once()
    assert read == ["read"]
    assert {each.on_first_token for each in running} == {None}


def test_the_checkpoints_of_many_jobs_are_saved_in_one_statement(
    sessions: sessionmaker[Session],
    impatient: sessionmaker[Session],
    running: list[RunningJob],
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
    for number, each in enumerate(running, 1):
        found, given = saved[each.lease.job_id], output_of(f"part {number}", number)
        assert (found.output, found.output_ids, found.num_tokens) == (given.text, given.packed_ids, number)
