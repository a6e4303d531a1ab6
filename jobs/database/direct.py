"""Hot statements sent straight to libpq: SQLAlchemy and the driver take several times as long over them.

Several that need nothing of each other go in one message: waiting for an answer takes longer than most do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import capabilities, errors, generators
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from sqlalchemy import Connection, Engine, TextClause, TextualSelect, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from jobs.database import hot
from jobs.database.packed_arrays import packer_of

Statement = TextClause | TextualSelect
Rows = Sequence[tuple[Any, ...]]


class Query(NamedTuple):
    """A statement that returns rows, and the values of its parameters, which have types."""

    statement: Statement
    given: Mapping[str, Any]


_NAMES: Final = "longbatch.direct_names"
_STALE: Final = "longbatch.direct_stale"
_NUMBERS: Final = count(1)
_DIALECT: Final = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
_BINARY: Final = 1


def allow_direct(engine: Engine) -> None:
    """Let statements go straight to libpq on the engine's connections."""

    def begin(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        entry.info[_NAMES], entry.info[_STALE] = {}, []

    def forget(connection: Connection) -> None:
        # The driver may drop all prepared statements of a session that rolls back.
        if not connection.invalidated:
            connection.info[_STALE] += connection.info[_NAMES].values()
            connection.info[_NAMES] = {}

    event.listen(engine, "connect", begin)
    event.listen(engine, "rollback", forget)


def fetch(session: Session, statement: Statement, given: Mapping[str, Any]) -> Rows:
    """Execute a statement that returns rows, in the session's transaction; prepare it where that is right.

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


def fetch_all(session: Session, queries: Sequence[Query]) -> list[Rows]:
    """Execute statements one after the other, as `fetch` does, and wait once for all their rows.

    Raises:
        DBAPIError: of the first that fails; those after it were not executed.
    """
    session.flush()
    connection = session.connection()
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection) or not _can_send(connection, driver):
        return [[tuple(row) for row in session.execute(each.statement, each.given)] for each in queries]
    place = 0
    try:
        results = _send(connection, driver, [_written(each) for each in queries])
        for place, result in enumerate(results):  # noqa: B007  # the one that failed
            _checked(result)
    except psycopg.Error as error:
        hot.fail_next(connection, error)
        session.execute(*queries[place])  # SQLAlchemy translates it, and drops lost connections
        raise
    return [_rows(driver, each) for each in results]


def _rows(driver: "psycopg.Connection[Any]", result: PGresult) -> Rows:
    loader = Transformer.from_context(driver)
    loader.set_pgresult(result)
    return loader.load_rows(0, result.ntuples, tuple)


@dataclass(frozen=True, slots=True)
class _Compiled:
    sql: bytes
    types: Sequence[int]
    packers: Sequence[tuple[str, Callable[[Any], bytes]]]


@cache  # as many as the program has
def _compile(statement: Statement) -> _Compiled:
    compiled = statement.compile(dialect=_DIALECT)
    kinds = [(name, *packer_of(compiled.binds[name].type)) for name in compiled.positiontup or []]
    types, packers = [oid for _, oid, _ in kinds], [(name, pack) for name, _, pack in kinds]
    return _Compiled(str(compiled).encode(), types, packers)


_Values = list[Any]  # bytes or None, in the order of the parameters
_Written = tuple[_Compiled, _Values]


def _written(query: Query) -> _Written:
    compiled = _compile(query.statement)
    return compiled, [
        None if query.given[name] is None else pack(query.given[name]) for name, pack in compiled.packers
    ]


def _send(
    connection: Connection, driver: "psycopg.Connection[Any]", written: Sequence[_Written]
) -> list[PGresult]:
    """Execute the statements in the transaction, as prepared ones where that is right; see `hot`."""
    pgconn = driver.pgconn
    is_idle = pgconn.transaction_status == TransactionStatus.IDLE
    if driver.prepare_threshold is None:
        if is_idle:
            _checked(pgconn.exec_(b"BEGIN"))
        return [
            pgconn.exec_params(each.sql, values, each.types, _binary(values), _BINARY)
            for each, values in written
        ]
    if hot.must_discard_plans(connection):
        _checked(pgconn.exec_(b"DISCARD PLANS"))
    prepared = [(_prepare(connection, pgconn, each), values) for each, values in written]
    if (is_idle or len(prepared) > 1) and capabilities.has_pipeline():
        return _send_together(driver, prepared, begins=is_idle)
    if is_idle:
        _checked(pgconn.exec_(b"BEGIN"))
    return [pgconn.exec_prepared(name, values, _binary(values), _BINARY) for name, values in prepared]


_Prepared = tuple[bytes, _Values]


def _send_together(
    driver: "psycopg.Connection[Any]", prepared: Sequence[_Prepared], *, begins: bool
) -> list[PGresult]:
    """Send statements in one message, after BEGIN if they begin the transaction, and await all results."""
    pgconn = driver.pgconn
    pgconn.enter_pipeline_mode()
    try:
        results = driver.wait(_exchange(pgconn, prepared, begins=begins))
    finally:
        _leave_pipeline(driver)
    if begins:
        _checked(results.pop(0))
    return results


def _exchange(pgconn: PGconn, prepared: Sequence[_Prepared], *, begins: bool) -> PQGen[list[PGresult]]:
    if begins:
        pgconn.send_query_params(b"BEGIN", None)
    for name, values in prepared:
        pgconn.send_query_prepared(name, values, _binary(values), _BINARY)
    pgconn.pipeline_sync()
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    while not results or results[-1].status != ExecStatus.PIPELINE_SYNC:
        results += yield from generators.fetch_many(pgconn)
    return results[:-1]


def _leave_pipeline(driver: "psycopg.Connection[Any]") -> None:
    try:
        driver.pgconn.exit_pipeline_mode()
    except psycopg.Error:  # it was lost, or what it waits for was cut off
        driver.close()


def _binary(values: _Values) -> Sequence[int]:
    return [_BINARY] * len(values)


def _prepare(connection: Connection, pgconn: PGconn, compiled: _Compiled) -> bytes:
    names: dict[bytes, bytes] = connection.info[_NAMES]
    if compiled.sql not in names:
        _close_stale(connection, pgconn)
        name = b"longbatch_%d" % next(_NUMBERS)
        _checked(pgconn.prepare(name, compiled.sql, compiled.types))
        names[compiled.sql] = name
    return names[compiled.sql]


def _close_stale(connection: Connection, pgconn: PGconn) -> None:
    stale: list[bytes] = connection.info[_STALE]
    while stale and capabilities.has_send_close_prepared():
        _checked(pgconn.close_prepared(stale.pop()))  # to close one that is gone is no error


def _checked(result: PGresult) -> PGresult:
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    raise errors.error_from_result(result)


def _can_send(connection: Connection, driver: "psycopg.Connection[Any]") -> bool:
    """Return True if `allow_direct` knows the connection, BEGIN begins its transactions, and none listens."""
    special = (driver.isolation_level, driver.read_only, driver.deferrable)
    is_plain = not driver.autocommit and special == (None, None, None)
    listeners = connection.dispatch
    is_watched = bool(listeners.before_cursor_execute) or bool(listeners.after_cursor_execute)
    return is_plain and not is_watched and _NAMES in connection.info
