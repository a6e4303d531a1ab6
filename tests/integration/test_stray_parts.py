"""Bytes that no row names are swept, and never those that one is about to name."""

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs import files, stray_parts
from jobs.batch_models import File
from jobs.batch_states import FileState
from jobs.database import database_now
from jobs.errors import UnavailableError
from jobs.isolation import WORKER_ROLE
from jobs.models import DEFAULT_TENANT
from jobs.storage import FOLDERS, DirectoryStore, PartStore, StoredPart
from jobs.stray_parts import NAMED_WITHIN, SWEPT_AFTER
from worker.batches import sweep_stray_parts

MINUTE = timedelta(minutes=1)


@pytest.fixture
def store(tmp_path: Path, sessions: sessionmaker[Session]) -> DirectoryStore:
    """Claimed by the tests' database."""
    made = DirectoryStore(tmp_path)
    assert sweep(sessions, made) == 0
    assert made.owner()
    return made


def sweep(sessions: sessionmaker[Session], store: PartStore) -> int:
    return sweep_stray_parts(sessions, store, folders=FOLDERS, is_stopping=lambda: False)


def put(sessions: sessionmaker[Session], root: Path, *, age: timedelta) -> StoredPart:
    """A part that was put so long ago."""
    part = DirectoryStore(root).put(b"abc")
    assert part.key is not None
    with sessions() as session:
        milliseconds = int((database_now(session) - age).timestamp() * 1000)
    key = UUID(int=milliseconds << 80 | UUID(hex=part.key).int & (1 << 80) - 1).hex
    folder = root / part.key[-2:]
    (folder / f"{part.key}.zst").rename(folder / f"{key}.zst")
    return StoredPart(part.num_bytes, key=key)


def a_file(session: Session) -> File:
    return files.create(
        session, tenant_id=DEFAULT_TENANT, purpose="batch", filename="a", state=FileState.GROWING
    )


def add(session: Session, part: StoredPart) -> None:
    files.add_part(session, a_file(session).id, part, start=0, tenant_id=DEFAULT_TENANT)


def keys(store: PartStore) -> set[str]:
    return {key for folder in FOLDERS for piece in store.list_keys(folder) for key in piece}


def test_parts_of_a_transaction_that_was_rolled_back_are_swept(
    sessions: sessionmaker[Session], store: DirectoryStore, tmp_path: Path
) -> None:
    stray = put(sessions, tmp_path, age=SWEPT_AFTER + MINUTE)
    young = put(sessions, tmp_path, age=SWEPT_AFTER - MINUTE)
    named = put(sessions, tmp_path, age=NAMED_WITHIN - MINUTE)
    with sessions.begin() as session:
        add(session, named)
    (tmp_path / FOLDERS[0]).mkdir(exist_ok=True)
    (tmp_path / FOLDERS[0] / "notes.zst").write_text("not ours")
    assert sweep(sessions, store) == 1
    assert keys(store) == {young.key, named.key, "notes"}
    assert stray.key not in keys(store)


def test_a_part_that_may_be_swept_is_named_by_nobody(sessions: sessionmaker[Session], tmp_path: Path) -> None:
    late = put(sessions, tmp_path, age=NAMED_WITHIN + MINUTE)
    with sessions() as session, pytest.raises(UnavailableError):
        add(session, late)


def test_a_part_of_a_transaction_that_is_still_open_is_not_swept(
    sessions: sessionmaker[Session], store: DirectoryStore, tmp_path: Path
) -> None:
    """However long it takes: it named the part in time."""
    part = put(sessions, tmp_path, age=NAMED_WITHIN - MINUTE)
    with sessions.begin() as session:
        add(session, part)
        assert part.key is not None
        # As if a day passed before its commit.
        old = put(sessions, tmp_path, age=SWEPT_AFTER + MINUTE)
        session.connection().exec_driver_sql("UPDATE file_parts SET key = %s", (old.key,))
        assert sweep(sessions, store) == 0
    assert sweep(sessions, store) == 0
    assert old.key in keys(store)


def test_another_database_s_parts_are_left_alone(sessions: sessionmaker[Session], tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.claim("another/longbatch")
    part = put(sessions, tmp_path, age=SWEPT_AFTER + MINUTE)
    assert sweep(sessions, store) == 0
    assert part.key in keys(store)


def test_a_worker_s_login_may_sweep(sessions: sessionmaker[Session], tmp_path: Path) -> None:
    part = put(sessions, tmp_path, age=SWEPT_AFTER + MINUTE)
    assert part.key is not None
    with sessions.begin() as session:
        session.connection().exec_driver_sql(f"SET LOCAL ROLE {WORKER_ROLE}")
        assert stray_parts.owner(session)
        assert stray_parts.find(session, [part.key]) == [part.key]
