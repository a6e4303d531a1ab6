"""Rows in sets: one statement, whatever their number, with an array for each column."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import TableValuedAlias, bindparam, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert
from sqlalchemy.types import TypeEngine

from jobs.database.base import Base


@cache
def insertion(kind: type[Base], names: tuple[str, ...]) -> Insert:
    """Build the statement that inserts rows in order; its parameters are the columns' values, as lists.

    Its text does not grow with the rows, so it is compiled once and costs Postgres nothing to parse.
    """
    table = Base.metadata.tables[kind.__tablename__]
    columns = [table.c[name] for name in names]
    given = func.unnest(*(bindparam(each.name, type_=ARRAY(each.type)) for each in columns))
    named = [column(each.name, each.type) for each in columns]
    rows = given.table_valued(*named, name="given").render_derived()
    return insert(table).from_select(names, select(*rows.c), include_defaults=False)


def row_set(name: str, **columns: TypeEngine[Any]) -> TableValuedAlias:
    """Describe a table that a statement gets with its parameters, see `parameters`.

    The statement does not depend on the number of rows, and is built once.
    """
    arrays = [bindparam(f"{name}_{each}", type_=ARRAY(kind)) for each, kind in columns.items()]
    kinds = [column(each, kind) for each, kind in columns.items()]
    return func.unnest(*arrays).table_valued(*kinds, name=name).render_derived(name=name)


def parameters(name: str, **columns: Sequence[object]) -> dict[str, object]:
    """Build a statement's parameters for a row set of this name; its columns are equally long."""
    return {f"{name}_{each}": list(values) for each, values in columns.items()}
