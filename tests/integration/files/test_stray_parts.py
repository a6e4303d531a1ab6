"""Bytes that no row names are swept, and never those that one is about to name."""

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import files
from jobs.database import database_now
from jobs.errors import UnavailableError
from jobs.files import stray_parts
from jobs.files.storage import FOLDERS, OWNER_NAME, DirectoryStore, PartStore, StoredPart
from jobs.files.stray_parts import NAMED_WITHIN, NOTED_FOR, SWEPT_AFTER
from jobs.models import DEFAULT_TENANT
from jobs.models.file import File, FilePart
from jobs.models.stray_part import Installation, StrayPart
from jobs.states.file import FileState
from jobs.tenants.isolation import WORKER_ROLE
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


def pass_time(sessions: sessionmaker[Session], span: timedelta) -> None:
    """Let notes be this much older."""
    with sessions.begin() as session:
        session.execute(update(StrayPart).values(seen_at=StrayPart.seen_at - span))


def name_old(session: Session, root: Path, sessions: sessionmaker[Session]) -> StoredPart:
    """A part put more than a day ago, and named in time."""
    add(session, put(sessions, root, age=NAMED_WITHIN - MINUTE))
    old = put(sessions, root, age=SWEPT_AFTER + MINUTE)
    session.execute(update(FilePart).values(key=old.key))
    return old


def keys(store: PartStore) -> set[str]:
    return {key for folder in FOLDERS for piece in store.list_keys(folder) for key in piece}


def test_parts_of_a_transaction_that_was_rolled_back_are_swept_after_a_week(
    sessions: sessionmaker[Session], store: DirectoryStore, tmp_path: Path
) -> None:
    stray = put(sessions, tmp_path, age=SWEPT_AFTER + MINUTE)
    young = put(sessions, tmp_path, age=SWEPT_AFTER - MINUTE)
    named = put(sessions, tmp_path, age=NAMED_WITHIN - MINUTE)
    with sessions.begin() as session:
        add(session, named)
    (tmp_path / FOLDERS[0]).mkdir(exist_ok=True)
    (tmp_path / FOLDERS[0] / "notes.zst").write_text("not ours")
    assert sweep(sessions, store) == 0
    pass_time(sessions, NOTED_FOR - MINUTE)
    assert sweep(sessions, store) == 0
    assert stray.key in keys(store)
    pass_time(sessions, MINUTE)
    assert sweep(sessions, store) == 1
    assert keys(store) == {young.key, named.key, "notes"}
    with sessions() as session:
        assert session.scalars(select(StrayPart.key)).all() == []


def test_a_database_emptied_and_filled_again_loses_no_bytes(
    sessions: sessionmaker[Session], store: DirectoryStore, tmp_path: Path
) -> None:
    with sessions.begin() as session:
        part = name_old(session, tmp_path, sessions)
        file_id = session.scalars(select(FilePart.file_id)).one()
    with sessions.begin() as session:
        session.execute(delete(FilePart))
    assert sweep(sessions, store) == 0
    pass_time(sessions, NOTED_FOR - MINUTE)
    with sessions.begin() as session:
        row = {"file_id": file_id, "start": 0, "tenant_id": DEFAULT_TENANT, "num_bytes": 3}
        session.execute(insert(FilePart).values(**row, key=part.key))
    assert sweep(sessions, store) == 0  # named again: the week begins anew
    with sessions.begin() as session:
        session.execute(delete(FilePart))
    pass_time(sessions, 2 * MINUTE)
    assert sweep(sessions, store) == 0
    assert part.key in keys(store)


def test_notes_of_another_table_of_parts_do_not_count(
    sessions: sessionmaker[Session], store: DirectoryStore, tmp_path: Path
) -> None:
    """As those that a dump brings along, before it fills the table of parts."""
    part = put(sessions, tmp_path, age=SWEPT_AFTER + MINUTE)
    assert sweep(sessions, store) == 0
    pass_time(sessions, 2 * NOTED_FOR)
    with sessions.begin() as session:
        before = stray_parts.catalogue(session)
        session.execute(text("TRUNCATE file_parts"))
        assert stray_parts.catalogue(session) != before
    assert sweep(sessions, store) == 0
    assert part.key in keys(store)
    pass_time(sessions, NOTED_FOR)
    assert sweep(sessions, store) == 1


def test_a_database_made_anew_sweeps_nothing_of_the_one_before(
    sessions: sessionmaker[Session], store: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the server and the name of the one before, and another random id."""
    part = put(sessions, tmp_path, age=SWEPT_AFTER + MINUTE)
    with sessions.begin() as session:
        before = stray_parts.owner(session)
        assert stray_parts.owner(session) == before
        session.execute(delete(Installation))
        assert stray_parts.owner(session) != before
    for _ in range(2):
        assert sweep(sessions, store) == 0
        pass_time(sessions, NOTED_FOR)
    assert part.key in keys(store)
    assert "remove the file or object `owner`" in capsys.readouterr().out
    (tmp_path / OWNER_NAME).unlink()  # as docs/operations.md says
    assert [sweep(sessions, store), sweep(sessions, store)] == [0, 0]  # claimed, noted
    pass_time(sessions, NOTED_FOR)
    assert sweep(sessions, store) == 1


def test_notes_of_parts_that_went_otherwise_are_forgotten(
    sessions: sessionmaker[Session], store: DirectoryStore, tmp_path: Path
) -> None:
    part = put(sessions, tmp_path, age=SWEPT_AFTER + MINUTE)
    assert part.key is not None
    assert sweep(sessions, store) == 0
    store.drop([part.key])
    pass_time(sessions, 10 * NOTED_FOR)
    assert sweep(sessions, store) == 0
    with sessions() as session:
        assert session.scalars(select(StrayPart.key)).all() == []


def test_a_part_that_may_be_swept_is_named_by_nobody(sessions: sessionmaker[Session], tmp_path: Path) -> None:
    late = put(sessions, tmp_path, age=NAMED_WITHIN + MINUTE)
    with sessions() as session, pytest.raises(UnavailableError):
        add(session, late)


def test_a_part_of_a_transaction_that_is_still_open_is_not_swept(
    sessions: sessionmaker[Session], store: DirectoryStore, tmp_path: Path
) -> None:
    """However long it takes: it named the part in time."""
    with sessions.begin() as session:
        old = name_old(session, tmp_path, sessions)
        assert sweep(sessions, store) == 0
        pass_time(sessions, NOTED_FOR)
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
        assert stray_parts.take(session, [part.key]) == []
        session.execute(update(StrayPart).values(seen_at=StrayPart.seen_at - NOTED_FOR))
        stray_parts.forget_old(session)
        assert stray_parts.take(session, [part.key]) == [part.key]
