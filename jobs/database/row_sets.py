"""Rows in sets: one statement, whatever their number, with an array for each column."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BindParameter, ColumnElement, bindparam, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert
from sqlalchemy.types import TypeEngine

from jobs.database.base import Base
from jobs.database.compiled import Statement
from jobs.database.direct import Query
from jobs.database.packed_arrays import PackedArrayType, is_packable

# Of each table a statement for each choice of columns, and of those that all rows share.
_MAX_STATEMENTS: Final = 1000


def insert_set(
    kind: type[Base],
    values: Mapping[str, Sequence[object]],
    *,
    then: Callable[[Insert], Statement] | None = None,
) -> Query:
    """Build the statement that inserts rows in order, and its parameters.

    Args:
        kind: the table.
        values: the rows' values by column. What all rows share is sent once, as arrays cost the driver most.
        then: completes the statement; a function of a module, as the statement is built once for each.
    """
    shared = frozenset(name for name, each in values.items() if len(each) > 1 and _is_one(each))
    given: dict[str, object] = {name: each[0] if name in shared else each for name, each in values.items()}
    return Query(_insertion(kind, tuple(values), shared, then), given)


def _is_one(values: Sequence[object]) -> bool:
    # The last one tells of most columns at once; counting compares without Python.
    return values[0] == values[-1] and values.count(values[0]) == len(values)


@lru_cache(maxsize=_MAX_STATEMENTS)
def _insertion(
    kind: type[Base],
    names: tuple[str, ...],
    shared: frozenset[str],
    then: Callable[[Insert], Statement] | None,
) -> Statement:
    """Build the statement; its text does not grow with the rows, so it is compiled once and parsed fast."""
    table = Base.metadata.tables[kind.__tablename__]
    types = {name: table.c[name].type for name in names}
    columns = [column(name, types[name]) for name in names if name not in shared]
    arrays = func.unnest(*(bindparam(each.name, type_=_array_of(each.type)) for each in columns))
    rows = arrays.table_valued(*columns, name="given").render_derived()
    chosen: dict[str, ColumnElement[Any]] = {
        name: bindparam(name, type_=types[name]) if name in shared else rows.c[name] for name in names
    }
    inserting = insert(table).from_select([*chosen], select(*chosen.values()), include_defaults=False)
    return inserting if then is None else then(inserting)


def _array_of(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    return PackedArrayType(kind) if is_packable(kind) else ARRAY(kind)


def array_parameters(**kinds: TypeEngine[Any]) -> list[BindParameter[Any]]:
    """Declare parameters of a text, each an array with a value for each row."""
    return [bindparam(name, type_=ARRAY(kind)) for name, kind in kinds.items()]
