"""Batches are validated in turns, and one that ends leaves no file that nobody can remove."""

import errno
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Engine, QueuePool, func, select, update
from sqlalchemy.orm import Session, sessionmaker

from batch_support import Service, lines, tools, validate_next
from jobs import files, lifecycle, turns
from jobs.database import database_now
from jobs.errors import NotFoundError
from jobs.files.storage import DirectoryStore, RowStore, StoredPart
from jobs.models import DEFAULT_TENANT
from jobs.models.batch import Batch
from jobs.models.file import File, FilePart
from jobs.models.turn import VALIDATION
from jobs.states.file import FileState


@pytest.fixture
def service(sessions: sessionmaker[Session]) -> Service:
    return Service(sessions)


def retried(service: Service) -> UUID:
    """A batch of the one line of three that failed, which is not validated yet."""
    batch_id = service.accepted(lines(3))
    with service.sessions.begin() as session:
        lifecycle.cancel(session, service.jobs(batch_id)[0].id, tenant_id=DEFAULT_TENANT)
    service.complete()
    service.settle()
    return service.retry(batch_id)


def lose_worker(service: Service) -> int:
    """The next batch's worker is killed; which attempt that was."""
    with service.sessions.begin() as session:
        turn = turns.claim(session, VALIDATION, lease=timedelta(0))
        assert turn is not None
        return turn.attempt


def test_a_batch_whose_validation_loses_three_workers_is_refused_alone(service: Service) -> None:
    poisoned, other = service.create(lines(1)), service.create(lines(1))
    assert [lose_worker(service) for _ in range(3)] == [1, 2, 3]
    while validate_next(service.sessions, service.tools):
        pass
    batch = service.batch(poisoned)
    assert (batch.state, [each["code"] for each in batch.errors or []]) == ("failed", ["validation_failed"])
    assert service.batch(other).state == "in_progress"


@pytest.mark.parametrize("end", ["cancel", "refuse", "cancel half written"])
def test_the_file_of_a_retry_that_ends_early_goes_with_its_bytes(service: Service, end: str) -> None:
    again = retried(service)
    file_id = service.batch(again).input_file_id
    if end == "refuse":
        assert [lose_worker(service) for _ in range(3)] == [1, 2, 3]
        assert validate_next(service.sessions, service.tools)
    else:
        if end == "cancel half written":
            half_written(service, file_id)
        service.cancel(again)
        service.settle()
    assert service.batch(again).is_terminal
    with service.sessions.begin() as session:
        with pytest.raises(NotFoundError):
            files.get(session, file_id, tenant_id=DEFAULT_TENANT)
        late = database_now(session) + timedelta(days=1)
        while files.prune(session, service.tools.store, now=late):
            pass
        assert session.get(File, file_id) is None
        left = select(func.count()).where(FilePart.file_id == file_id)
        assert session.scalar(left) == 0


def half_written(service: Service, file_id: UUID) -> None:
    """As a worker leaves the file that is killed while it copies."""
    with service.sessions.begin() as session:
        file = session.get_one(File, file_id)
        files.append(session, file, [b"half of a line"], service.tools.store)


def test_a_retry_whose_worker_was_killed_half_way_begins_anew(service: Service) -> None:
    again = retried(service)
    half_written(service, service.batch(again).input_file_id)
    assert lose_worker(service) == 1
    assert validate_next(service.sessions, service.tools)
    batch = service.batch(again)
    assert (batch.state, batch.num_lines) == ("in_progress", 1)
    assert [line["custom_id"] for line in service.read(batch.input_file_id)] == ["line-0"]
    with service.sessions() as session:
        assert session.get_one(File, batch.input_file_id).state == FileState.COMPLETE


class AwayStore(DirectoryStore):
    """Its mount is away."""

    def _path(self, key: str) -> Path:
        return super()._path(key) / "away"


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many"), None])
def test_bytes_that_cannot_be_read_now_do_not_refuse_a_batch(
    service: Service, tmp_path: Path, error: OSError | None
) -> None:
    class Short(DirectoryStore):
        def get(self, part: StoredPart) -> bytes:
            assert error is not None, part
            raise error

    service.tools = tools(DirectoryStore(tmp_path))
    batch_id = service.create(lines(1))
    if error is None:
        assert validate_next(service.sessions, tools(AwayStore(tmp_path)))
    else:
        assert validate_next(service.sessions, tools(Short(tmp_path)))
    batch = service.batch(batch_id)
    assert (batch.state, batch.num_validations) == ("validating", 0 if error is None else 1)
    assert batch.run_after is not None
    with service.sessions.begin() as session:
        session.execute(update(Batch).values(run_after=func.clock_timestamp()))
    assert validate_next(service.sessions, service.tools)
    assert service.batch(batch_id).state == "in_progress"


class WatchedStore(RowStore):
    """Notes how many connections are in use while bytes are read."""

    def __init__(self, engine: Engine) -> None:
        self._pool = engine.pool
        self.in_use: set[int] = set()

    def get(self, part: StoredPart) -> bytes:
        assert isinstance(self._pool, QueuePool)
        self.in_use.add(self._pool.checkedout())
        return super().get(part)

    def put(self, raw: bytes) -> StoredPart:
        assert isinstance(self._pool, QueuePool)
        self.in_use.add(self._pool.checkedout())
        return super().put(raw)


def test_no_transaction_is_open_while_a_file_is_read_or_copied(service: Service, engine: Engine) -> None:
    again = retried(service)
    store = WatchedStore(engine)
    assert validate_next(service.sessions, tools(store))
    assert service.batch(again).state == "in_progress"
    assert store.in_use == {0}
