"""Rows written in sets: one statement, whatever their number, with an array for each column."""

from functools import cache

from sqlalchemy import bindparam, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert

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
