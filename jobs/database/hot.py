"""Statements that run many times a second: prepared where the connection is ours alone.

Behind a transaction pooler the next statement may reach another session, so nothing is prepared there. A
pooler shows itself: the server process that answers is not the one that the connection began with.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine.interfaces import DBAPICursor, ExecutionContext

# Options of a statement whose plan hardly depends on its values: it reaches each row by a unique key.
PREPARED: Final[Mapping[str, Any]] = {"longbatch_prepared": True}
# Of the statement that `fail` executes.
_FAILS: Final[Mapping[str, Any]] = {"longbatch_fails": True}
# A plan made while a table was small reads all of it later; Postgres notices only after an ANALYZE.
_PLANS_LIVE_SECONDS: Final = 2.0
_PLANNED_AT: Final = "longbatch.planned_at"
_FAILED: Final = "longbatch.failed"
# The driver prepares what it is asked to, and nothing because it was executed often.
ON_REQUEST: Final = sys.maxsize


def prepare_hot_statements(engine: Engine) -> None:
    """Let the engine's connections prepare statements that have the options `PREPARED`."""
    event.listen(engine, "do_execute", _execute)


def fail(connection: Connection, error: psycopg.Error) -> None:
    """Let the connection fail with this error: SQLAlchemy translates it, and drops a lost connection.

    Raises:
        DBAPIError: always.
    """
    connection.info[_FAILED] = error
    connection.execute(text("SELECT"), execution_options=_FAILS)


def must_discard_plans(connection: Connection) -> bool:
    """Return True, once, if the connection's plans have become old."""
    now = time.monotonic()
    planned_at: float = connection.info.setdefault(_PLANNED_AT, now)
    if now - planned_at <= _PLANS_LIVE_SECONDS:
        return False
    connection.info[_PLANNED_AT] = now
    return True


def _execute(cursor: DBAPICursor, statement: str, given: Any, context: ExecutionContext) -> bool | None:  # noqa: ANN401  # as the driver takes them
    """Execute the statement as prepared; None: the caller executes it."""
    if context.execution_options.get("longbatch_fails"):
        raise context.root_connection.info.pop(_FAILED)
    if not context.execution_options.get("longbatch_prepared") or not isinstance(cursor, psycopg.Cursor):
        return None
    if cursor.connection.prepare_threshold is None:
        return None
    if must_discard_plans(context.root_connection):
        cursor.execute("DISCARD PLANS")
    cursor.execute(statement, given, prepare=True)
    return True
