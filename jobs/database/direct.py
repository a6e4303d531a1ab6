"""Hot statements sent straight to libpq: SQLAlchemy and the driver take several times as long over them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import capabilities, errors
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


def fetch(session: Session, statement: Statement, given: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
    """Execute a statement that returns rows, in the session's transaction; prepare it where that is right.

    It may take the usual way: through another driver, or if anything listens to what is executed.

    Args:
        session: its pending changes are sent before.
        statement: its parameters have types.
        given: values of its parameters.

    Raises:
        DBAPIError: as `session.execute` does.
    """
    session.flush()
    connection = session.connection()
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection) or not _can_send(connection, driver):
        return [tuple(row) for row in session.execute(statement, given)]
    compiled = _compile(statement)
    try:
        values = [None if given[name] is None else pack(given[name]) for name, pack in compiled.packers]
        result = _execute(connection, driver, compiled, values)
    except psycopg.Error as error:
        hot.fail_next(connection, error)
        session.execute(statement, given)  # SQLAlchemy translates it, and drops lost connections
        raise
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


def _execute(
    connection: Connection,
    driver: "psycopg.Connection[Any]",
    compiled: _Compiled,
    values: list[Any],
) -> PGresult:
    pgconn, formats = driver.pgconn, [_BINARY] * len(values)
    if pgconn.transaction_status == TransactionStatus.IDLE:
        _checked(pgconn.exec_(b"BEGIN"))
    if driver.prepare_threshold is None:  # see `hot`
        return _checked(pgconn.exec_params(compiled.sql, values, compiled.types, formats, _BINARY))
    if hot.must_discard_plans(connection):
        _checked(pgconn.exec_(b"DISCARD PLANS"))
    name = _prepare(connection, pgconn, compiled)
    return _checked(pgconn.exec_prepared(name, values, formats, _BINARY))


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
