"""Connections to Postgres: engines with timeouts, and sessions that commit once, at the edge."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, cast
from uuid import UUID

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from jobs import liveness, telemetry
from jobs.database.sealed_columns import use_sealer
from jobs.sealing.content import PLAIN, ContentSealer
from jobs.settings import DatabaseSettings

_HAS_LIMITS: Final = "longbatch.has_limits"
_USED_AT: Final = "longbatch.used_at"
_TRUSTED_SECONDS: Final = 1.0
_ENDED: Final = "longbatch.ended"
_OUTCOMES: Final = "longbatch.outcomes"
_DISK_FULL: Final = "53100"  # SQLSTATE
_ON_ENDED: Final = "longbatch.on_ended"


def make_engine(
    settings: DatabaseSettings,
    *,
    pool_size: int | None = None,
    name: str = "longbatch",
    sealer: ContentSealer = PLAIN,
) -> Engine:
    """Make a synchronous engine for workers and commands.

    Args:
        settings: where to connect, and the time limits.
        pool_size: most connections; None: the number in the settings.
        name: `application_name`, shown in pg_stat_activity.
        sealer: of callers' content.
    """
    engine = create_engine(sqlalchemy_url(settings), **_options(settings, pool_size, name))
    _keep_limits(engine, settings)
    _test_idle(engine)
    use_sealer(engine, sealer)
    return engine


def make_async_engine(
    settings: DatabaseSettings, *, name: str = "longbatch-api", sealer: ContentSealer = PLAIN
) -> AsyncEngine:
    """Make an asynchronous engine for the API, with the sealer of callers' content.

    It does not test connections before use: the API repeats a transaction whose connection was lost.
    """
    options = _options(settings, None, name)
    engine = create_async_engine(sqlalchemy_url(settings), **options)
    _keep_limits(engine.sync_engine, settings)
    use_sealer(engine.sync_engine, sealer)
    return engine


def make_sessions(
    engine: Engine | None = None, *, on_ended: Callable[[Collection[UUID]], None] | None = None
) -> sessionmaker[Session]:
    """Make a factory of sessions whose objects stay readable after commit.

    Args:
        engine: of the connections; None: the caller binds the factory to one before its first use.
        on_ended: `transaction` calls it after the commit with the ids that `note_ended` noted.
    """
    return sessionmaker(engine, expire_on_commit=False, info={_ON_ENDED: on_ended})


@contextmanager
def transaction(sessions: sessionmaker[Session]) -> Iterator[Session]:
    """Open one session with one transaction; commit at the end, roll back on an error."""
    with sessions() as session:
        with session.begin():
            yield session
        liveness.progressed()
        ended, on_ended = take_ended(session), session.info.get(_ON_ENDED)
        if on_ended is not None and ended:
            on_ended(ended)


def note_ended(session: Session, ids: Collection[UUID]) -> None:
    """Note jobs, summaries and batches that this transaction ends: callers hear of it after the commit."""
    session.info.setdefault(_ENDED, set()).update(ids)


def note_outcomes(session: Session, states: Iterable[str]) -> None:
    """Note the states of jobs that this transaction ends, which are counted after the commit."""
    session.info.setdefault(_OUTCOMES, Counter()).update(states)


def take_ended(session: Session) -> Collection[UUID]:
    """Count the noted outcomes and return the noted ids, once the transaction is committed."""
    outcomes: Counter[str] = session.info.pop(_OUTCOMES, Counter())
    for state, number in outcomes.items():
        telemetry.JOBS_ENDED.labels(state).inc(number)
    ended: set[UUID] = session.info.pop(_ENDED, set())
    return ended


def database_now(session: Session) -> datetime:
    """Read the database's clock, which decides every lease."""
    now: datetime = session.scalars(select(func.clock_timestamp())).one()
    return now


def is_full(error: BaseException) -> bool:
    """Return True if the database has no room on its disk: that is no row's fault, and passes."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _DISK_FULL


def sqlalchemy_url(settings: DatabaseSettings) -> URL:
    """Return the configured URL with the driver psycopg 3, whatever driver it names."""
    return make_url(settings.url.get_secret_value()).set(drivername="postgresql+psycopg")


def _keep_limits(engine: Engine, settings: DatabaseSettings) -> None:
    """Apply the time limits even if a pooler drops those that a connection asks for.

    A connection that got them when it started keeps them. Any other is taken for one of a transaction pooler,
    which may run each transaction in another session: each sets its limits itself, and nothing is prepared.
    Limits of a role would not do: they hold for the role that logs in, and the login is the operator's.
    """
    limits = _limits(settings)
    names = ", ".join(f"'{name}'" for name in limits)
    asked_for = f"""
        SELECT count(*) FROM pg_settings WHERE name IN ({names}) AND source = 'client'
    """  # noqa: S608
    set_limits = "; ".join(f"SET LOCAL {name} = {value}" for name, value in limits.items())

    def read_limits(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(asked_for)
        entry.info[_HAS_LIMITS] = cursor.fetchone() == (len(limits),)
        if not entry.info[_HAS_LIMITS]:  # the pooler's next session has none of these statements
            cast("psycopg.Connection[Any]", entry.driver_connection).prepare_threshold = None
        cursor.close()
        connection.rollback()

    def set_missing_limits(connection: Connection) -> None:
        if not connection.info[_HAS_LIMITS]:
            connection.exec_driver_sql(set_limits)

    event.listen(engine, "connect", read_limits)
    event.listen(engine, "begin", set_missing_limits)


def _test_idle(engine: Engine) -> None:
    """Test connections before use if they were idle: a round trip for each transaction costs too much."""

    def note_use(_connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
        entry.info[_USED_AT] = time.monotonic()

    def test(connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: PoolProxiedConnection) -> None:
        if time.monotonic() - entry.info[_USED_AT] < _TRUSTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except psycopg.Error as error:
            raise DisconnectionError from error

    event.listen(engine, "connect", note_use)
    event.listen(engine, "checkin", note_use)
    event.listen(engine, "checkout", test)


# The server's side of a connection: a process that vanished, with its host or its network, leaves its locks
# and its place among `max_connections` to others after a minute. By its defaults it keeps them for two hours.
_NOTICED: Final = {
    "tcp_keepalives_idle": 30,  # s
    "tcp_keepalives_interval": 10,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # ms
}
# A prepared statement may keep its plan until the next ANALYZE of a table. A plan that was made while the
# table was small must not scan all of it later. `jit`: before Postgres 18, Postgres would compile a plan with
# a scan that no index can replace, as `enable_seqscan` makes it look expensive.
_PLANNING: Final = {"enable_seqscan": "off", "jit": "off"}


def _limits(settings: DatabaseSettings) -> dict[str, int]:
    """Return the limits by their Postgres names, in milliseconds."""
    seconds = {
        "statement_timeout": settings.statement_timeout_seconds,
        "lock_timeout": settings.lock_timeout_seconds,
        "idle_in_transaction_session_timeout": settings.idle_in_transaction_timeout_seconds,
    }
    return {name: int(value * 1000) for name, value in seconds.items()}


def _options(settings: DatabaseSettings, pool_size: int | None, name: str) -> dict[str, object]:
    started_with = {**_limits(settings), **_NOTICED, **_PLANNING}
    options = " ".join(f"-c {name}={value}" for name, value in started_with.items())
    return {
        "pool_size": pool_size or settings.pool_size,
        "max_overflow": 0,
        # The connection used last needs no test, and its server process is warm.
        "pool_use_lifo": True,
        "pool_timeout": settings.pool_timeout_seconds,
        "hide_parameters": True,  # prompts must not reach logs through error messages
        "connect_args": {
            "application_name": name,
            "connect_timeout": settings.connect_timeout_seconds,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,  # ms; notices a vanished server even while data is in flight
            "options": options,
        },
    }
