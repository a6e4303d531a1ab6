from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    DateTime,
    Float,
    Integer,
    Interval,
    LargeBinary,
    SmallInteger,
    Text,
    Uuid,
    bindparam,
    column,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from jobs.database.packed_arrays import PACKABLE, PackedArrayType

NOON = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
VALUES: list[tuple[TypeEngine[Any], list[object]]] = [
    (Boolean(), [True, None, False]),
    (LargeBinary(), [b"", b"\0\xff", None]),
    (BigInteger(), [-(2**63), 2**63 - 1, None]),
    (SmallInteger(), [-(2**15), 0, None]),
    (Integer(), [-(2**31), 2**31 - 1, None]),
    (Text(), ["", "ä\n{}\"\\'", "NULL", None]),
    (DateTime(timezone=True), [NOON, NOON - timedelta(days=40_000), None]),
    (Float(), [-0.5, 1e300, None]),
    (Interval(), [timedelta(microseconds=-1), timedelta(days=40, seconds=3), None]),
    (Uuid(), [UUID(int=2**128 - 1), UUID(int=0), None]),
    (JSONB(), [{"a": [1, "ü"]}, [], "x"]),
]


def sent(session: Session, kind: TypeEngine[Any], values: Sequence[object]) -> list[object]:
    """What Postgres makes of the array."""
    array = func.unnest(bindparam("given", type_=PackedArrayType(kind)))
    rows = array.table_valued(column("each", kind), name="rows").render_derived()
    return list(session.scalars(select(rows.c.each), {"given": values}))


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda each: type(each).__name__)
def test_postgres_reads_packed_arrays_as_what_they_were(
    session: Session, kind: TypeEngine[Any], values: list[object]
) -> None:
    assert sent(session, kind, values) == values
    assert sent(session, kind, []) == []


def test_every_kind_of_packed_array_is_tried() -> None:
    assert {type(kind) for kind, _ in VALUES} == PACKABLE


@pytest.mark.parametrize(
    ("kind", "value"), [(Integer(), 2**31), (SmallInteger(), 2**15), (Text(), "a\0b")], ids=repr
)
def test_what_postgres_cannot_store_is_a_data_error(
    session: Session, kind: TypeEngine[Any], value: object
) -> None:
    with pytest.raises(DataError):
        sent(session, kind, [value])
