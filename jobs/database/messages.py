"""Messages of several commands each, straight to libpq: all are sent before any answer is awaited."""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import psycopg
from psycopg import capabilities, errors, generators
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import AdaptedConnection

Driver = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
Values = list[Any]  # bytes or None, in the order of the parameters
Command = Callable[[PGconn], None]

BINARY: Final = 1


def is_prepared(driver: Driver) -> bool:
    """Return True if statements are prepared, and several go in one message."""
    return driver.prepare_threshold is not None and capabilities.has_pipeline()


def send_together(connection: Connection, driver: Driver, commands: Sequence[Command]) -> list[PGresult]:
    """Send all of it in one message, and await all results."""
    driver.pgconn.enter_pipeline_mode()
    try:
        exchange = _exchange(driver.pgconn, commands)
        if isinstance(driver, psycopg.Connection):
            return driver.wait(exchange)
        adapter = cast("AdaptedConnection", connection.connection.dbapi_connection)
        return adapter.run_async(lambda waiting: waiting.wait(exchange))
    finally:
        _leave_pipeline(driver)


def _exchange(pgconn: PGconn, commands: Sequence[Command]) -> PQGen[list[PGresult]]:
    for command in commands:
        command(pgconn)
    pgconn.pipeline_sync()
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    while not results or results[-1].status != ExecStatus.PIPELINE_SYNC:
        results += yield from generators.fetch_many(pgconn)
    return results[:-1]


def send_prepare(name: bytes, sql: bytes, types: Sequence[int], pgconn: PGconn) -> None:
    """Prepare a statement."""
    pgconn.send_prepare(name, sql, types)


def send_values(name: bytes, values: Values, pgconn: PGconn) -> None:
    """Execute a prepared statement."""
    pgconn.send_query_prepared(name, values, binary(values), BINARY)


def _leave_pipeline(driver: Driver) -> None:
    try:
        driver.pgconn.exit_pipeline_mode()
    except psycopg.Error:  # it was lost, or what it waits for was cut off
        driver.pgconn.finish()


def binary(values: Values) -> Sequence[int]:
    """Tell libpq that all of them are binary."""
    return [BINARY] * len(values)


def send_simple(sql: bytes, pgconn: PGconn) -> None:
    """Execute a statement without parameters or rows."""
    pgconn.send_query_params(sql, None)


def send_close(name: bytes, pgconn: PGconn) -> None:
    """Close a prepared statement."""
    pgconn.send_close_prepared(name)


def checked(result: PGresult) -> PGresult:
    """Return the result.

    Raises:
        psycopg.Error: the statement failed.
    """
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    raise errors.error_from_result(result)
