"""Alembic's entry point: one upgrade at a time, one transaction per migration, short waits for locks."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Final

from alembic import context
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, event, pool, text
from sqlalchemy.engine import Connection

from jobs.database import sqlalchemy_url
from jobs.database.advisory_locks import MIGRATIONS
from jobs.models import Base
from jobs.settings import load_database
from migrations import isolation

_LOCK_POLL_SECONDS: Final = 0.1
# DDL gives up if it cannot get its lock in 5 s, as every statement on the table queues up after it. Work that
# holds no such lock (filling, validating) may take any time.
_LIMITS: Final = (
    "SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = 0;"
    " SET LOCAL idle_in_transaction_session_timeout = 0"
)
_HOLDS_LOCK: Final = text(
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    " AND classid = 0 AND objid = :key AND objsubid = 1)"
)


def run(connection: Connection) -> None:
    """Run every pending migration, then bring roles and policies up to date.

    A migration that fails, or dies, leaves those before it applied: the next run continues from there.
    """
    with _alone(connection), _limits(connection):
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            compare_server_default=True,
            transaction_per_migration=True,
            on_version_apply=_check_lock,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()
        with connection.begin():
            isolation.apply(connection)


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Hold the advisory lock of migrations for the session.

    It polls instead of waiting: a statement that waits has a snapshot, and CREATE INDEX CONCURRENTLY of the
    process that holds the lock would in turn wait for that.
    """
    while True:
        with connection.begin():
            taken = connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": MIGRATIONS})
        if taken:
            break
        sleep(_LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.rollback()
            with connection.begin():
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATIONS})


@contextmanager
def _limits(connection: Connection) -> Iterator[None]:
    """Give each transaction of this connection the time limits of migrations."""

    def limit(begun: Connection) -> None:
        if begun.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            begun.exec_driver_sql(_LIMITS)

    event.listen(connection, "begin", limit)
    try:
        yield
    finally:
        event.remove(connection, "begin", limit)


def _check_lock(*, ctx: MigrationContext, **_: object) -> None:
    """Refuse to continue in another session than the one that holds the lock.

    A pooler may give the transaction such a session.
    """
    if ctx.connection is None or not ctx.connection.scalar(_HOLDS_LOCK, {"key": MIGRATIONS}):
        raise RuntimeError(
            "migrations need a direct connection to Postgres: this one changes sessions between transactions"
        )


def main() -> None:
    """Run on the caller's connection, otherwise on LONGBATCH_DATABASE__URL."""
    given = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    engine = create_engine(sqlalchemy_url(load_database()), poolclass=pool.NullPool)
    with engine.connect() as connection:
        run(connection)


main()
