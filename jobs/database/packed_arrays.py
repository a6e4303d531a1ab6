"""Parameters in Postgres' binary format: of arrays the driver writes text, at several times the cost."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format
from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    ColumnElement,
    DateTime,
    Dialect,
    Float,
    Integer,
    Interval,
    LargeBinary,
    SmallInteger,
    Text,
    Uuid,
    cast,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import TypeEngine, UserDefinedType

from jobs.database.sealed_columns import Sealed

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# Number of dimensions, whether any item is null, type of the items, how many, index of the first.
_HEADER: Final = struct.Struct(">iiIii")
_EMPTY: Final = struct.Struct(">iiI")
_LENGTH: Final = struct.Struct(">i").pack
_NULL: Final = _LENGTH(-1)


@dataclass(frozen=True, slots=True)
class PackedArray:
    """An array as Postgres receives it."""

    content: bytes


class _PackedArrayDumper(Dumper):
    format = Format.BINARY
    oid = 0  # the statement says what it is

    def dump(self, obj: PackedArray) -> Buffer:
        return obj.content


psycopg.adapters.register_dumper(PackedArray, _PackedArrayDumper)


class PackedArrayType(UserDefinedType[Sequence[Any]]):
    """The type of parameters that are arrays with items of this type, see `is_packable`."""

    cache_ok = True

    def __init__(self, item: TypeEngine[Any]) -> None:
        self.item = item

    def bind_expression(self, bindvalue: BindParameter[Sequence[Any]]) -> ColumnElement[Sequence[Any]]:
        """Say in the statement what the parameter is."""
        return cast(bindvalue, ARRAY(self.item))

    def bind_processor(self, dialect: Dialect) -> Callable[[Sequence[Any] | None], PackedArray]:
        """Return the function that packs the values."""
        oid, pack = _packer_of_items(self.item)

        def process(values: Sequence[Any] | None) -> PackedArray:
            stored = as_stored(self, values or (), dialect)
            return PackedArray(_pack(oid, [None if each is None else pack(each) for each in stored]))

        return process


def _pack(oid: int, items: Sequence[bytes | None]) -> bytes:
    if not items:
        return _EMPTY.pack(0, 0, oid)
    parts = [_HEADER.pack(1, None in items, oid, len(items), 1)]
    for each in items:
        parts += (_NULL,) if each is None else (_LENGTH(len(each)), each)
    return b"".join(parts)


def packer_of(kind: TypeEngine[Any]) -> tuple[int, Callable[[Any], bytes]]:
    """Return a parameter's type in Postgres' catalog, and the function that writes its values.

    Of an array the type is 0: the statement says what it is.

    Raises:
        KeyError: there is none.
    """
    item = _item_of(kind)
    if item is None:
        return _packer_of_items(kind)
    oid, pack = _packer_of_items(item)
    return 0, lambda values: _pack(oid, [None if each is None else pack(each) for each in values])


def as_stored(kind: TypeEngine[Any], value: Any, dialect: Dialect) -> Any:  # noqa: ANN401  # of any type
    """Seal a parameter, or the items of an array, if its type says that it is content."""
    if isinstance(kind, Sealed):
        return kind.process_bind_param(value, dialect)
    item = _item_of(kind)
    if isinstance(item, Sealed):
        return [item.process_bind_param(each, dialect) for each in value]
    return value


def holds_content(kind: TypeEngine[Any]) -> bool:
    """Return True if `as_stored` seals values of this type."""
    return isinstance(kind, Sealed) or isinstance(_item_of(kind), Sealed)


def is_packable(kind: TypeEngine[Any]) -> bool:
    """Return True if arrays can have items of this type, as `PackedArrayType`."""
    return _stored_type(kind) in PACKABLE


def _item_of(kind: TypeEngine[Any]) -> TypeEngine[Any] | None:
    if isinstance(kind, PackedArrayType):
        return kind.item
    if isinstance(kind, ARRAY):
        item: TypeEngine[Any] = kind.item_type
        return item
    return None


def _packer_of_items(kind: TypeEngine[Any]) -> tuple[int, Callable[[Any], bytes]]:
    return _PACKERS[_stored_type(kind)]


def _stored_type(kind: TypeEngine[Any]) -> type[TypeEngine[Any]]:
    return kind.stored if isinstance(kind, Sealed) else type(kind)


def _number(form: str) -> Callable[[float], bytes]:
    pack = struct.Struct(form).pack

    def of(value: float) -> bytes:
        try:
            return pack(value)
        except struct.error as error:  # as Postgres says it
            raise psycopg.DataError(str(error)) from None

    return of


def _json(value: object) -> bytes:
    return b"\1" + json.dumps(value).encode()


def _time(value: datetime) -> bytes:
    return struct.pack(">q", (value - _EPOCH) // _MICROSECOND)


def _span(value: timedelta) -> bytes:
    return struct.pack(">qii", value // _MICROSECOND, 0, 0)


# By the type of a column: the type of the items in Postgres' catalog, and how one is written.
_PACKERS: Final[Mapping[type[TypeEngine[Any]], tuple[int, Callable[[Any], bytes]]]] = {
    Boolean: (16, lambda value: b"\1" if value else b"\0"),
    LargeBinary: (17, bytes),
    BigInteger: (20, _number(">q")),
    SmallInteger: (21, _number(">h")),
    Integer: (23, _number(">i")),
    Text: (25, str.encode),
    Float: (701, _number(">d")),
    DateTime: (1184, _time),
    Interval: (1186, _span),
    Uuid: (2950, attrgetter("bytes")),
    JSONB: (3802, _json),
}
PACKABLE: Final = frozenset(_PACKERS)
