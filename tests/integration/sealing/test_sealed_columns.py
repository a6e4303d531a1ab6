"""Columns that seal themselves, on every way into the database and out of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from jobs import database
from jobs.database import statements
from jobs.database.sealed_columns import Sealed, SealedBytes, SealedJson, SealedText, plain_length
from jobs.database.statements import Statement
from jobs.sealing.content import ESCAPE, SEALED, ContentSealer, ContentUnreadableError
from jobs.settings import DatabaseSettings

Sessions = sessionmaker[Session]
KEY = bytes(range(32))


class _Base(DeclarativeBase):
    pass


class Kept(_Base):
    """A table of its own, so that no table of the product decides what this shows."""

    __tablename__ = "kept_content"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    note: Mapped[str | None] = mapped_column(SealedText("kept.note"))
    packed: Mapped[bytes | None] = mapped_column(SealedBytes("kept.packed"))
    facts: Mapped[Any] = mapped_column(SealedJson("kept.facts"), nullable=True)


STORED = Table(
    "kept_content",
    MetaData(),
    Column("id", Integer),
    Column("note", Text),
    Column("packed", LargeBinary),
    Column("facts", JSONB),
)
ROWS: list[tuple[Any, ...]] = [
    (1, "the diagnosis", b"\x28\xb5\x2f\xfd", {"a": [1, "ü"]}),
    (2, SEALED + "forged", SEALED.encode() + b"forged", ESCAPE + "forged"),
    (3, "", b"", []),
    (4, "ä" * 5000, bytes(9999), "x"),
    (5, None, None, None),
]
NAMES = ("id", "note", "packed", "facts")
KINDS = {"id": Integer(), "note": Kept.note.type, "packed": Kept.packed.type, "facts": Kept.facts.type}
READ = text("SELECT id, note, packed, facts FROM kept_content ORDER BY id").columns(**KINDS)


@pytest.fixture(params=["sealed", "plain"])
def made(
    request: pytest.FixtureRequest, engine: Engine, database_settings: DatabaseSettings
) -> Iterator[Engine]:
    """An engine that seals, and one with the same key that does not; the table is empty."""
    sealer = ContentSealer([KEY], seals=request.param == "sealed")
    found = database.make_engine(database_settings, pool_size=1, sealer=sealer)
    _Base.metadata.drop_all(engine)
    _Base.metadata.create_all(engine)
    yield found
    found.dispose()
    _Base.metadata.drop_all(engine)


def write_by_rows(session: Session) -> None:
    session.add_all([Kept(**dict(zip(NAMES, row, strict=True))) for row in ROWS])


def write_by_statement(session: Session) -> None:
    session.execute(insert(Kept), [dict(zip(NAMES, row, strict=True)) for row in ROWS])


def write_by_sets(session: Session) -> None:
    arrays = ", ".join(
        f"%({name})s::{kind}[]"
        for name, kind in zip(NAMES, ("integer", "text", "bytea", "jsonb"), strict=True)
    )
    sealed = {name: kind for name, kind in KINDS.items() if isinstance(kind, Sealed)}
    inserting = Statement(f"INSERT INTO kept_content SELECT * FROM unnest({arrays})", sealed)  # noqa: S608
    statements.fetch(session, inserting, dict(zip(NAMES, zip(*ROWS, strict=True), strict=True)))


def write_inserted_set(session: Session) -> None:
    values = dict(zip(NAMES, map(list, zip(*ROWS, strict=True)), strict=True))
    statements.fetch(session, *statements.insert_set(Kept, values))


WRITERS = [write_by_rows, write_by_statement, write_by_sets, write_inserted_set]


@pytest.mark.parametrize("write", WRITERS)
def test_all_ways_write_what_all_ways_read(made: Engine, write: Any) -> None:  # noqa: ANN401  # a function
    with Session(made) as session:
        write(session)
        session.commit()
        assert [tuple(row) for row in session.execute(select(*Kept.__table__.c).order_by(Kept.id))] == ROWS
        assert [
            (each.id, each.note, each.packed, each.facts)
            for each in session.scalars(select(Kept).order_by(Kept.id))
        ] == ROWS
        assert [tuple(row) for row in session.execute(READ)] == ROWS


@pytest.mark.parametrize("write", WRITERS)
def test_nothing_of_the_content_is_stored_where_it_is_sealed(made: Engine, write: Any) -> None:  # noqa: ANN401
    with Session(made) as session:
        write(session)
        stored = session.execute(select(STORED).order_by(STORED.c.id)).all()
    is_sealed = [
        [
            str(each.note).startswith(SEALED),
            (each.packed or b"").startswith(SEALED.encode()),
            str(each.facts).startswith(SEALED),
        ]
        for each in stored
    ]
    seals = made.dialect.longbatch_sealer.seals  # type: ignore[attr-defined]
    assert is_sealed == [[seals] * 3] * 4 + [[False] * 3]
    assert ("the diagnosis" in str(stored[0])) == (not seals)


def test_lengths_are_those_of_the_content(made: Engine) -> None:
    lengths = select(plain_length(Kept.note), plain_length(Kept.packed)).order_by(Kept.id)
    with Session(made) as session:
        write_by_rows(session)
        session.add(Kept(id=6, note="ab", packed=None, facts=None))
        assert [tuple(row) for row in session.execute(lengths)] == [
            *(
                (None if note is None else len(note.encode()), None if packed is None else len(packed))
                for _, note, packed, _ in ROWS
            ),
            (2, None),
        ]


def test_an_engine_without_the_key_reads_what_is_plain_and_names_the_missing_key(
    made: Engine, engine: Engine
) -> None:
    seals = made.dialect.longbatch_sealer.seals  # type: ignore[attr-defined]
    with Session(made) as session:
        write_by_rows(session)
        session.commit()
    with Session(engine) as session:
        if not seals:
            assert [tuple(row) for row in session.execute(READ)] == ROWS
            return
        with pytest.raises(ContentUnreadableError, match="not configured"):
            session.execute(READ).all()
        with pytest.raises(ContentUnreadableError, match="not configured"):
            session.get(Kept, 1)
        assert session.scalar(select(func.count()).select_from(Kept)) == len(ROWS)  # goes on
