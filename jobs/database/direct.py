"""Hot statements sent straight to libpq: SQLAlchemy and the driver take several times as long over them.

Several that need nothing of each other go in one message: waiting for an answer takes longer than most do.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import capabilities
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, Dialect, Engine, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry

from jobs.database import hot, messages
from jobs.database.compiled import CompiledStatement, Statement, compiled
from jobs.database.messages import BINARY, Command, Driver, Values, checked, is_prepared
from jobs.database.packed_arrays import as_stored

Rows = Sequence[tuple[Any, ...]]


class Query(NamedTuple):
    """A statement, the same object whenever it is sent, and the values of its parameters.

    These have types.
    """

    statement: Statement
    given: Mapping[str, Any]


# What the transaction executes after this is planned once, whatever its values: one plan is right for all.
KEEP_PLANS: Final = Query(text("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)"), {})
_NAMES: Final = "longbatch.direct_names"
_STALE: Final = "longbatch.direct_stale"
_LATER: Final = "longbatch.direct_later"
_LATER_ROWS: Final = "longbatch.direct_later_rows"
# Rows in sets are inserted by many statements, one for each choice of columns: the oldest give way.
MAX_NAMES: Final = 200
_NUMBERS: Final = count(1)


def allow_direct(engine: Engine) -> None:
    """Let statements go straight to libpq on the engine's connections."""

    def begin(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        entry.info[_NAMES], entry.info[_STALE] = {}, []

    def forget(connection: Connection) -> None:
        # The driver may drop all prepared statements of a session that rolls back, to a savepoint too.
        if not connection.invalidated:
            connection.info[_STALE] += connection.info[_NAMES].values()
            connection.info[_NAMES] = {}

    event.listen(engine, "connect", begin)
    event.listen(engine, "rollback", forget)
    event.listen(engine, "rollback_savepoint", lambda connection, _name, _context: forget(connection))


def fetch(session: Session, statement: Statement, given: Mapping[str, Any]) -> Rows:
    """Execute a statement in the session's transaction, and return its rows; prepare it where that is right.

    It may take the usual way: through another driver, or if anything listens to what is executed.

    Args:
        session: its pending changes are sent before.
        statement: its parameters have types.
        given: values of its parameters.

    Raises:
        DBAPIError: as `session.execute` does.
    """
    (rows,) = fetch_all(session, [Query(statement, given)])
    return rows


def later(session: Session, query: Query) -> Callable[[], Rows]:
    """Execute a statement with the session's next message, before what that was made for, or the commit.

    Returns:
        The function that returns its rows until the commit; it sends the statement if nothing was sent since.
    """
    waiting: list[Query] = session.info.setdefault(_LATER, [])
    found: list[Rows] = session.info.setdefault(_LATER_ROWS, [])
    place = len(found) + len(waiting)
    waiting.append(query)

    def rows() -> Rows:
        if place >= len(found):
            fetch_all(session, [])
        return found[place]

    return rows


def send_later(session: Session) -> None:
    """Send what waits for the session's next message, if anything does."""
    if session.info.get(_LATER):
        fetch_all(session, [])


def fetch_all(session: Session, queries: Sequence[Query]) -> list[Rows]:
    """Execute statements one after the other, as `fetch` does, and wait once for all their rows.

    Raises:
        DBAPIError: of the first that fails; those after it were not executed.
    """
    session.flush()
    if not (ahead := session.info.pop(_LATER, ())):
        return _fetch_all(session, queries)
    found = _fetch_all(session, [*ahead, *queries])
    session.info[_LATER_ROWS] += found[: len(ahead)]
    return found[len(ahead) :]


def _fetch_all(session: Session, queries: Sequence[Query]) -> list[Rows]:
    connection = session.connection()
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection | psycopg.AsyncConnection) or not _can_send(
        connection, driver
    ):
        return [_fetch_usually(session, each) for each in queries]
    try:
        written = [_written(each, connection.dialect) for each in queries]
        results = _send(connection, driver, written)
        found = [_rows(driver, checked(each)) for each in results]
    except psycopg.Error as error:
        hot.fail(connection, error)
        raise
    return [
        _opened(rows, each.statement, connection.dialect) for each, rows in zip(queries, found, strict=True)
    ]


def _fetch_usually(session: Session, query: Query) -> Rows:
    result = session.connection().execute(*query)
    return [tuple(row) for row in result] if result.returns_rows else []


def _rows(driver: Driver, result: PGresult) -> Rows:
    loader = Transformer.from_context(driver)
    loader.set_pgresult(result)
    return loader.load_rows(0, result.ntuples, tuple)


def _opened(rows: Rows, statement: Statement, dialect: Dialect) -> Rows:
    """Open the columns of these rows that hold content."""
    sealed = compiled(statement).sealed
    if not sealed:
        return rows

    def opened(row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for place, kind in sealed:
            values[place] = kind.process_result_value(values[place], dialect)
        return tuple(values)

    return [opened(row) for row in rows]


_Written = tuple[CompiledStatement, Values]


def _written(query: Query, dialect: Dialect) -> _Written:
    statement, given = compiled(query.statement), query.given
    return statement, [
        None
        if (value := given[name]) is None
        else pack(value if kind is None else as_stored(kind, value, dialect))
        for name, kind, pack in statement.packers
    ]


def _send(connection: Connection, driver: Driver, written: Sequence[_Written]) -> list[PGresult]:
    """Execute the statements in the transaction, as prepared ones where that is right; see `hot`."""
    pgconn = driver.pgconn
    if not is_prepared(driver):
        if pgconn.transaction_status == TransactionStatus.IDLE:
            checked(pgconn.exec_(b"BEGIN"))
        return [
            pgconn.exec_params(each.sql, values, each.types, messages.binary(values), BINARY)
            for each, values in written
        ]
    ahead: list[Command] = (
        [partial(messages.send_simple, b"DISCARD PLANS")] if hot.must_discard_plans(connection) else []
    )
    if pgconn.transaction_status == TransactionStatus.IDLE:
        ahead.append(partial(messages.send_simple, b"BEGIN"))
    prepared, new = _prepared(connection, written)
    if new:
        ahead += _closings(connection, but={name for name, _ in prepared})
    ahead += [partial(messages.send_prepare, name, each.sql, each.types) for each, name in new.items()]
    if isinstance(driver, psycopg.Connection) and not ahead and len(prepared) == 1:
        ((name, values),) = prepared
        return [driver.pgconn.exec_prepared(name, values, messages.binary(values), BINARY)]
    commands: list[Command] = [*ahead, *(partial(messages.send_values, *each) for each in prepared)]
    results = messages.send_together(connection, driver, commands)
    for each in results[: len(ahead)]:
        checked(each)
    connection.info[_NAMES].update((each.sql, name) for each, name in new.items())
    return results[len(ahead) :]


_Prepared = tuple[bytes, Values]


def _prepared(
    connection: Connection, written: Sequence[_Written]
) -> tuple[list[_Prepared], dict[CompiledStatement, bytes]]:
    """Return the names of these statements with their values, and the names of those to prepare."""
    known: dict[bytes, bytes] = connection.info[_NAMES]
    new = {each: b"longbatch_%d" % next(_NUMBERS) for each, _ in written if each.sql not in known}
    return [(known.get(each.sql) or new[each], values) for each, values in written], new


def _closings(connection: Connection, *, but: Collection[bytes]) -> list[Command]:
    """Return what closes the statements that are no longer used; to close one that is gone is no error."""
    stale: list[bytes] = connection.info[_STALE]
    names: dict[bytes, bytes] = connection.info[_NAMES]
    for sql, name in list(names.items())[: max(0, len(names) - MAX_NAMES)]:
        if name not in but:
            stale.append(names.pop(sql))
    if not capabilities.has_send_close_prepared():
        return []
    closed = stale.copy()
    stale.clear()
    return [partial(messages.send_close, name) for name in closed]


def _can_send(connection: Connection, driver: Driver) -> bool:
    """Return True if `allow_direct` knows the connection, BEGIN begins its transactions, and none listens.

    Unprepared statements wait in libpq, where an event loop must not.
    """
    if isinstance(driver, psycopg.AsyncConnection) and not is_prepared(driver):
        return False
    level = driver.isolation_level
    # Once a transaction had another level, SQLAlchemy sets the default anew, and both others to False.
    is_default = level is None or level.name.replace("_", " ") == connection.dialect.default_isolation_level
    is_plain = is_default and not (driver.autocommit or driver.read_only or driver.deferrable)
    listeners = connection.dispatch
    is_watched = bool(listeners.before_cursor_execute) or bool(listeners.after_cursor_execute)
    return is_plain and not is_watched and _NAMES in connection.info


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    """Send what waits for the session's next message."""
    send_later(session)


@event.listens_for(Session, "after_transaction_end")
def _after_end(session: Session, ended: SessionTransaction) -> None:
    """Forget what was for this transaction only."""
    for key in (_LATER, _LATER_ROWS) if ended.parent is None else ():
        session.info.pop(key, None)
