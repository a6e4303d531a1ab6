"""SQL statements on psycopg's own cursors, in a session's transaction.

SQLAlchemy takes several times as long over the statements that run for every job, and writes arrays as text.
psycopg prepares what a connection executes often, and Postgres may keep its plan while a table grows. Even a
plan that is made for each execution knows no more of a table than its last ANALYZE found. So a statement on
given rows lets the planner do nothing but look them up: it has `id = ANY(ids)` besides its joins, and no
condition that a partial index of other columns has too.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, cast

import psycopg
from psycopg.pq import ExecStatus
from psycopg.types.array import ListBinaryDumper
from psycopg.types.json import Json
from sqlalchemy import JSON, Connection, Dialect, Engine, event
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine.interfaces import AdaptedConnection, DBAPICursor, ExecutionContext
from sqlalchemy.orm import DeclarativeBase, Session

from jobs.database.sealed_columns import Sealed

Rows = Sequence[tuple[Any, ...]]

_ERROR: Final = "longbatch_error"
_DIALECT: Final = postgresql.dialect()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """SQL with psycopg's placeholders, each with a cast, such as `%(ids)s::uuid[]`.

    The cast decides the type of a parameter: a list that is empty or all null has none. Returned content is
    as it is stored: `sealer_in(session)` opens it.

    Attributes:
        sql: its text; a literal `%` is doubled.
        sealed: parameters that hold content, by name: lists with a value for each row, and the type of the
            column that stores these values.
    """

    sql: str
    sealed: Mapping[str, Sealed] = field(default_factory=dict)


class Query(NamedTuple):
    """A statement and the values of its parameters."""

    statement: Statement
    values: Mapping[str, Any]


def fetch(session: Session, statement: Statement, values: Mapping[str, Any]) -> Rows:
    """Execute a statement in the session's transaction, and return its rows.

    Args:
        session: its pending changes are flushed first.
        statement: the statement.
        values: of its parameters.

    Raises:
        DBAPIError: as `session.execute` does.
    """
    (rows,) = fetch_all(session, [Query(statement, values)])
    return rows


def fetch_all(session: Session, queries: Sequence[Query]) -> list[Rows]:
    """Execute statements one after the other, as `fetch` does, and wait once for all their rows.

    Raises:
        DBAPIError: of the first that fails; those after it were not executed.
    """
    session.flush()
    connection = session.connection()
    sent = [_Sent(each.statement.sql, _stored(each, connection.dialect)) for each in queries]
    for each in sent:  # listeners of SQLAlchemy's statements hear of these too
        for listener in connection.dispatch.before_cursor_execute:
            listener(connection, None, *each, None, False)
    try:
        return _execute(connection, sent)
    except psycopg.Error as error:
        if len(sent) > 1 and connection.in_nested_transaction():
            _replace_later(connection)
        _fail(connection, sent, error)
    except BaseException as error:
        if not isinstance(error, Exception):  # cancelled: what the connection will receive is unknown
            connection.invalidate(error)
        raise


class _Sent(NamedTuple):
    sql: str
    values: Mapping[str, Any]


def _stored(query: Query, dialect: Dialect) -> dict[str, Any]:
    """Return the values as psycopg takes them: arrays as lists, content sealed."""
    values = {
        name: _as_list(each) if isinstance(each, list | tuple) else each
        for name, each in query.values.items()
    }
    for name, kind in query.statement.sealed.items():
        stored = [kind.process_bind_param(each, dialect) for each in values[name]]
        values[name] = as_json(stored) if kind.stored is JSONB else stored
    return values


def _as_list(values: Sequence[Any]) -> list[Any]:
    if {int, float} <= set(map(type, values)):  # psycopg takes one type of number
        return [float(each) if isinstance(each, int) else each for each in values]
    return list(values)


def as_json(values: Sequence[object]) -> list[object]:
    """Wrap the values of a parameter that is a list of JSON; None stays NULL."""
    return [None if each is None else Json(each) for each in values]


def _execute(connection: Connection, sent: Sequence[_Sent]) -> list[Rows]:
    driver = connection.connection.driver_connection
    if isinstance(driver, psycopg.AsyncConnection):
        adapter = cast("AdaptedConnection", connection.connection.dbapi_connection)
        return adapter.run_async(lambda _: _send_async(driver, sent))
    return _send(cast("psycopg.Connection[Any]", driver), sent)


def _send(driver: psycopg.Connection[Any], sent: Sequence[_Sent]) -> list[Rows]:
    cursors = [driver.cursor(binary=True) for _ in sent]
    with driver.pipeline() if len(sent) > 1 else nullcontext():
        for cursor, (sql, values) in zip(cursors, sent, strict=True):
            cursor.adapters.register_dumper(list, ListBinaryDumper)
            cursor.execute(sql.encode(), values)
    return [each.fetchall() if _has_rows(each) else [] for each in cursors]


async def _send_async(driver: psycopg.AsyncConnection[Any], sent: Sequence[_Sent]) -> list[Rows]:
    cursors = [driver.cursor(binary=True) for _ in sent]
    async with driver.pipeline() if len(sent) > 1 else nullcontext():
        for cursor, (sql, values) in zip(cursors, sent, strict=True):
            cursor.adapters.register_dumper(list, ListBinaryDumper)
            await cursor.execute(sql.encode(), values)
    return [await each.fetchall() if _has_rows(each) else [] for each in cursors]


def _has_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> bool:
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


def _replace_later(connection: Connection) -> None:
    """Prepare nothing more on this connection, and let its pool replace it after the transaction.

    A pipeline that fails skips statements that psycopg then takes for prepared. It forgets them when the
    transaction is rolled back, but not at each rollback to a savepoint.
    """
    proxy = connection.connection
    cast("psycopg.Connection[Any]", proxy.driver_connection).prepare_threshold = None
    proxy.invalidate(soft=True)


def _fail(connection: Connection, sent: Sequence[_Sent], error: psycopg.Error) -> NoReturn:
    """Raise the error through SQLAlchemy, which translates it and drops a lost connection from its pool."""
    sql = ";".join(each.sql for each in sent)
    connection.exec_driver_sql(sql, execution_options={_ERROR: error})
    raise error


@event.listens_for(Engine, "do_execute")
def _raise_given(_cursor: DBAPICursor, _sql: str, _values: object, context: ExecutionContext) -> None:
    if error := context.execution_options.get(_ERROR):
        raise error


def insert_set(
    kind: type[DeclarativeBase], values: Mapping[str, Sequence[object]], *, then: str = ""
) -> Query:
    """Build the statement that inserts rows in order, with an array for each column, and its values.

    Args:
        kind: the table.
        values: of the rows, by column.
        then: the rest of the statement: ON CONFLICT, RETURNING.
    """
    columns = kind.__table__.c
    arrays = {
        name: as_json(each) if isinstance(columns[name].type, JSON) else each for name, each in values.items()
    }
    return Query(_insertion(kind, tuple(values), then), arrays)


@lru_cache(maxsize=1000)  # of each table a statement for each choice of columns
def _insertion(kind: type[DeclarativeBase], names: tuple[str, ...], then: str) -> Statement:
    """Build the statement; its text does not grow with the rows."""
    types = {name: kind.__table__.c[name].type for name in names}
    columns = ", ".join(map(_DIALECT.identifier_preparer.quote, names))
    arrays = ", ".join(f"%({name})s::{type_.compile(_DIALECT)}[]" for name, type_ in types.items())
    sql = f"INSERT INTO {kind.__tablename__} ({columns}) SELECT * FROM unnest({arrays}) {then}"  # noqa: S608  # ours
    return Statement(sql, {name: each for name, each in types.items() if isinstance(each, Sealed)})
