"""Rounds over all tenants' rows: one row that cannot be moved stops no other, and is tried rarely."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from batch_support import Service, lines, tools
from jobs import files
from jobs.batches.ahead import Ahead
from jobs.batches.expansion import MAX_FAILURES
from jobs.batches.line_requests import LineRequest
from jobs.database import transaction
from jobs.errors import StorageFullError
from jobs.files.storage import DirectoryStore
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, Job, Reservation
from jobs.models.batch import Batch
from jobs.models.file import File, FilePart
from jobs.prompts.store import CountedPrompt
from jobs.settings import JobSettings
from jobs.states import JobState
from jobs.states.file import FileState
from openai_support import chat_line, jsonl
from support import (
    MODEL,
    WordCounter,
    claim_one,
    job_in,
    refusing,
    register_engine,
    spec,
    submit_one,
)
from worker.batches import BatchMaintenance
from worker.maintenance import JobMaintenance
from worker.rescue import Rescuer
from worker.rounds import FailingRows, move_set

POISON = "poison"


@pytest.fixture
def poisoned(sessions: sessionmaker[Session]) -> Iterator[None]:
    """Jobs with this custom id can be neither inserted, changed nor deleted."""
    changes = "BEFORE UPDATE OR DELETE ON jobs FOR EACH ROW"
    with refusing(
        sessions,
        f"{changes} WHEN (OLD.custom_id = 'poison' AND OLD.created_at < '2001-01-01')",
        "BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.custom_id = 'poison-line')",
    ):
        yield


def poison(session: Session) -> None:
    """From now on the job can be changed no more."""
    session.execute(update(Job).where(Job.custom_id == POISON).values(created_at=text("'2000-01-01'")))


def states(sessions: sessionmaker[Session]) -> list[tuple[str | None, str]]:
    with sessions() as session:
        return [(job.custom_id, job.state) for job in session.scalars(select(Job).order_by(Job.id))]


NAMES = ("a", POISON, "b", "c", "d")


@pytest.mark.usefixtures("poisoned")
def test_a_job_that_cannot_expire_keeps_no_other_from_it(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        for name in NAMES:
            submit_one(session, spec(custom_id=name, window=timedelta(microseconds=1)))
        poison(session)
    rounds = JobMaintenance(sessions)
    assert rounds.expire() == 4
    assert states(sessions) == [(name, "queued" if name == POISON else "expired") for name in NAMES]
    assert rounds.expire() == 0


def test_a_row_over_which_the_connection_is_lost_each_time_stops_one_round_alone(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        slow, *others = [submit_one(session, spec(custom_id=name)).id for name in NAMES]
    moved: list[UUID] = []

    def move(session: Session, only: Sequence[UUID]) -> int:
        if slow in only:
            mine = session.scalar(text("SELECT pg_backend_pid()"))
            with transaction(sessions) as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": mine})
        session.scalar(text("SELECT 1"))
        moved.extend(only)
        return len(only)

    failing = FailingRows("test")

    def move_once() -> list[int]:
        unmoved = select(Job.id).where(Job.id.not_in(moved)).order_by(Job.id)
        return move_set(sessions, failing, unmoved, move, limit=1)

    with pytest.raises(OperationalError):
        move_once()
    assert failing.ids() == [slow]
    while move_once():
        pass
    assert moved == others


def meet_a_full_database(session: Session) -> None:
    session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full'; END $$"))


def meet_a_full_directory(_session: Session) -> None:
    raise StorageFullError


@pytest.mark.parametrize("meet", [meet_a_full_database, meet_a_full_directory])
def test_a_full_disk_puts_no_row_aside(
    sessions: sessionmaker[Session], meet: Callable[[Session], None]
) -> None:
    with transaction(sessions) as session:
        submit_one(session)
    failing, is_full = FailingRows("test"), True

    def move(session: Session, only: Sequence[UUID]) -> int:
        if is_full:
            meet(session)
        return len(only)

    with pytest.raises((OperationalError, StorageFullError)):
        move_set(sessions, failing, select(Job.id), move, limit=10)
    is_full = False
    assert move_set(sessions, failing, select(Job.id), move, limit=10) == [1]


@pytest.mark.usefixtures("poisoned")
def test_a_job_that_cannot_be_rescued_keeps_no_other_from_it(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        for name in NAMES[:4]:
            submit_one(session, spec(custom_id=name))
            claim_one(session)
        session.execute(update(Job).values(lease_expires_at=func.clock_timestamp()))
        poison(session)
    assert len(Rescuer(sessions, max_rescues=2).rescue()) == 3
    assert states(sessions) == [(name, "running" if name == POISON else "queued") for name in NAMES[:4]]
    with sessions() as session:
        held = session.scalars(select(Reservation.state).order_by(Reservation.state)).all()
    assert held == ["draining"] * 3 + ["held"]


@pytest.mark.usefixtures("poisoned")
def test_a_misfit_that_cannot_fail_keeps_no_other_from_it(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        for name in NAMES:
            submit_one(session, spec(custom_id=name))
        session.execute(update(Job).values(max_tokens=200_000))
        poison(session)
        register_engine(session)
    assert len(JobMaintenance(sessions).reject_misfits()) == 4
    assert states(sessions) == [(name, "queued" if name == POISON else "failed") for name in NAMES]


@pytest.mark.usefixtures("poisoned")
def test_a_job_that_cannot_be_pruned_keeps_nothing_else_from_it(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        for name in NAMES:
            job_in(session, JobState.CANCELLED, custom_id=name)
            session.execute(delete(Reservation))
        session.execute(update(Job).values(finalized_at=text("'2000-01-01'")))
        poison(session)
    removed = JobMaintenance(sessions).prune(JobSettings())
    assert removed["jobs"] == 4
    assert removed["usage_entries"] == 5
    assert [name for name, _ in states(sessions)] == [POISON]


class BrokenStore(DirectoryStore):
    """Cannot drop one part."""

    broken: str

    def drop(self, keys: Sequence[str]) -> None:
        if self.broken in keys:
            raise PermissionError
        super().drop(keys)


def test_a_file_whose_bytes_cannot_be_dropped_keeps_no_other_from_it(
    sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    store = BrokenStore(tmp_path)
    service = Service(sessions, tools(store))
    file_ids = [service.file(name.encode()) for name in ("first", "second", "third")]
    with transaction(sessions) as session:
        store.broken = (
            session.scalars(
                select(FilePart.key).where(FilePart.file_id == file_ids[0]).order_by(FilePart.file_id)
            ).one()
            or ""
        )
        for file_id in file_ids:
            files.remove(session, file_id, tenant_id=DEFAULT_TENANT)
        session.flush()
        session.execute(update(File).values(deleted_at=text("'2000-01-01'")))
    BatchMaintenance(sessions, service.tools).prune(retention=timedelta(days=30), is_stopping=lambda: False)
    with sessions() as session:
        assert session.scalars(select(File.id)).all() == [file_ids[0]]


@pytest.mark.usefixtures("poisoned")
def test_a_line_that_the_database_refuses_fails_alone(sessions: sessionmaker[Session]) -> None:
    service = Service(sessions)
    content = lines(3)
    content[1]["custom_id"] = "poison-line"
    batch_id = service.accepted(content)
    service.complete()
    service.settle()
    assert service.batch(batch_id).state == "completed"
    assert service.outcome(batch_id) == (["line-0", "line-2"], ["poison-line"])


def test_a_batch_whose_lines_can_be_read_no_more_ends_with_what_it_has(
    sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path)
    service = Service(sessions, tools(store))
    # Long lines of short prompts: a slice ends after 4 MiB, so that few jobs need to run.
    batch_id = service.create(jsonl(lines(8)).replace(b"{", b"{" + b" " * 250_000))
    service.settle_validation()
    service.advance()
    with sessions() as session:
        keys = session.scalars(select(FilePart.key)).all()
    store.drop([key for key in keys if key])
    service.complete()
    service = Service(sessions, tools(store))  # a worker that has not read ahead
    for _ in range(MAX_FAILURES + 3):
        service.settle()
        with transaction(sessions) as session:
            session.execute(update(Batch).values(run_after=None))
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 6, 2)


def test_a_poisoned_row_is_tried_more_and_more_rarely() -> None:
    now = 0.0
    rows = FailingRows("test", clock=lambda: now)
    row_id = uuid7()
    pauses = []
    for _ in range(12):
        rows.skip(row_id, RuntimeError())
        before = now
        while rows.ids():
            now += 5
        pauses.append(now - before)
    assert pauses[:3] == [10, 20, 40]
    assert pauses[-1] == 3600


def test_a_set_is_halved_down_to_the_row_it_fails_on(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        job_ids = [submit_one(session).id for _ in range(16)]
    sets: list[int] = []

    def move(_session: Session, only: list[UUID]) -> int:
        sets.append(len(only))
        if job_ids[5] in only:
            raise ZeroDivisionError
        return len(only)

    rows = select(Job.id).order_by(Job.id)
    poisoned = FailingRows("test")
    assert sum(move_set(sessions, poisoned, rows, move, limit=100)) == 15
    assert poisoned.ids() == [job_ids[5]]
    assert len(sets) == 9, "1 + 2 for each of four halvings"


def test_a_failed_upload_is_pruned_at_once_and_a_deleted_file_once_its_readers_are_done(
    sessions: sessionmaker[Session],
) -> None:
    service = Service(sessions)
    with transaction(sessions) as session:
        failed = files.create(
            session,
            tenant_id=DEFAULT_TENANT,
            purpose=files.INPUT,
            filename="",
            state=FileState.UPLOADING,
        )
        part = service.tools.store.put(b"half of it")
        files.add_part(session, failed.id, part, start=0, tenant_id=DEFAULT_TENANT)
    kept = service.file(b"being read")
    with transaction(sessions) as session:
        files.discard(session, failed.id, tenant_id=DEFAULT_TENANT)
        files.remove(session, kept, tenant_id=DEFAULT_TENANT)
    BatchMaintenance(sessions, service.tools).prune(retention=timedelta(days=30), is_stopping=lambda: False)
    with sessions() as session:
        assert session.scalars(select(File.id)).all() == [kept]
        assert session.scalars(select(FilePart.file_id)).all() == [kept]


class Panic(BaseException):
    """What a tokenizer in Rust raises when it panics: no Exception."""


class PanickingCounter(WordCounter):
    """Panics on one text."""

    def count_together(self, canonicals: Sequence[str]) -> list[CountedPrompt | None]:
        return [self.count_prompt(each) for each in canonicals]

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        if POISON in canonical:
            raise Panic
        return super().count_prompt(canonical, limit=limit)


def test_a_line_on_which_the_tokenizer_panics_stops_no_other_line_and_no_other_batch(
    sessions: sessionmaker[Session],
) -> None:
    service = Service(sessions, tools(counter=PanickingCounter()))
    panics = chat_line("panics", POISON, model=MODEL)
    older, younger = service.create([*lines(1), panics]), service.create(lines(2))
    service.settle_validation()
    service.settle()
    assert [job.custom_id for job in service.jobs(older)] == ["line-0"]
    assert [job.custom_id for job in service.jobs(younger)] == ["line-0", "line-1"]
    assert service.outcome(older) == ([], ["panics"])


def test_work_on_one_batch_that_panics_keeps_no_other_batch_from_its_turn(
    sessions: sessionmaker[Session],
) -> None:
    class PanickingAhead(Ahead[Iterable[LineRequest]]):
        def take(
            self, batch_id: UUID, key: object, make: Callable[[], Iterable[LineRequest]]
        ) -> Iterable[LineRequest]:
            if batch_id == older:
                raise Panic
            return super().take(batch_id, key, make)

    service = Service(sessions, tools(ahead=PanickingAhead()))
    older, younger = service.create(lines(1)), service.create(lines(1))
    service.settle_validation()
    service.settle()
    assert (len(service.jobs(older)), len(service.jobs(younger))) == (0, 1)
    assert service.batch(older).num_failures == 1
