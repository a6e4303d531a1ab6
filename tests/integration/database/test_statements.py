"""Statements on psycopg's cursors: values, errors, lost connections, and plans."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Json
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from api.runtime.database import Transactions
from jobs import database
from jobs.database import statements
from jobs.database.statements import Query, Statement, as_json
from jobs.ids import uuid7
from jobs.models import Tenant
from jobs.settings import DatabaseSettings
from support import PATIENCE, eventually

NOON = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
VALUES: dict[str, list[object]] = {
    "boolean": [True, None, False],
    "bytea": [b"", b"\0\xff", None],
    "bigint": [-(2**63), 2**63 - 1, None],
    "smallint": [-(2**15), 0, None],
    "integer": [-(2**31), 2**31 - 1, None],
    "text": ["", "ä\n{}\"\\'", "NULL"],
    "timestamptz": [NOON, NOON - timedelta(days=40_000), None],
    "float8": [-0.5, 1e300, None],
    "interval": [timedelta(days=-3, microseconds=1), timedelta(days=40, seconds=3), None],
    "uuid": [UUID(int=2**128 - 1), UUID(int=0), None],
}
QUOTIENT = Statement("SELECT 12 / %(divisor)s::integer, 'it''s 100%%' || %(word)s::text")
PROCESS = text("SELECT pg_backend_pid()")
SLEEP = Statement("SELECT pg_sleep(%(seconds)s::float8)::text")


@pytest.fixture
def sessions(database_settings: DatabaseSettings) -> Iterator[sessionmaker[Session]]:
    """On a single connection, which has prepared `QUOTIENT`."""
    made = database.make_engine(database_settings, pool_size=1)
    sessions = database.make_sessions(made)
    for _ in range(6):
        with database.transaction(sessions) as session:
            divide(session)
    yield sessions
    made.dispose()


def dividing(*divisors: int) -> list[Query]:
    return [Query(QUOTIENT, {"divisor": each, "word": ""}) for each in divisors]


def divide(session: Session) -> Sequence[Sequence[tuple[object, ...]]]:
    return statements.fetch_all(session, dividing(4, 4))


def divide_by_zero(session: Session) -> None:
    statements.fetch_all(session, dividing(1, 0, 2))


def test_all_kinds_of_values_come_back_as_they_were(sessions: sessionmaker[Session]) -> None:
    sets = Statement(f"SELECT * FROM unnest({', '.join(f'%({kind})s::{kind}[]' for kind in VALUES)})")  # noqa: S608
    single = Statement(f"SELECT {', '.join(f'%({kind})s::{kind}' for kind in VALUES)}")
    with sessions() as session:
        rows = statements.fetch(session, sets, VALUES)
        assert rows == list(zip(*VALUES.values(), strict=True))
        for row in rows:
            assert statements.fetch(session, single, dict(zip(VALUES, row, strict=True))) == [row]
        assert statements.fetch(session, single, dict.fromkeys(VALUES)) == [(None,) * len(VALUES)]
        assert statements.fetch(session, sets, {kind: [None] for kind in VALUES}) == [(None,) * len(VALUES)]
        assert statements.fetch(session, sets, {kind: list[object]() for kind in VALUES}) == []
        assert statements.fetch(session, sets, dict.fromkeys(VALUES, ())) == []


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_json_comes_back_as_it_was(sessions: sessionmaker[Session], kind: str) -> None:
    values: list[object] = [{"b": [1, "ü"], "a": 2.5}, [], "x", None]
    with sessions() as session:
        unnest = Statement(f"SELECT unnest(%(given)s::{kind}[])")
        assert statements.fetch(session, unnest, {"given": as_json(values)}) == [(each,) for each in values]
        one = Statement(f"SELECT %(given)s::{kind}")
        assert statements.fetch(session, one, {"given": Json(values)}) == [(values,)]


def test_whole_numbers_among_others_are_numbers(sessions: sessionmaker[Session]) -> None:
    unnest = Statement("SELECT unnest(%(given)s::float8[])")
    with sessions() as session:
        found = statements.fetch(session, unnest, {"given": [1, 0.5, None, 2**40]})
    assert found == [(1.0,), (0.5,), (None,), (2.0**40,)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("integer", 2**31), ("smallint", 2**15), ("bigint", 2**63), ("text", "a\0b")],
    ids=repr,
)
def test_what_postgres_cannot_store_is_a_data_error_and_the_session_goes_on(
    sessions: sessionmaker[Session], kind: str, value: object
) -> None:
    for sql, given in ((f"SELECT %(given)s::{kind}[]", [value]), (f"SELECT %(given)s::{kind}", value)):
        with pytest.raises(DataError), database.transaction(sessions) as session:
            statements.fetch(session, Statement(sql), {"given": given})
        with pytest.raises(DataError), database.transaction(sessions) as session:
            statements.fetch_all(session, [*dividing(1), Query(Statement(sql), {"given": given})])
        with database.transaction(sessions) as session:
            assert divide(session) == [[(3, "it's 100%")]] * 2


def test_a_statement_that_is_executed_often_is_prepared(sessions: sessionmaker[Session]) -> None:
    with database.transaction(sessions) as session:
        divide(session)
        found = session.scalars(text("SELECT statement FROM pg_prepared_statements")).all()
        assert found == ["SELECT 12 / $1::integer, 'it''s 100%' || $2::text"]


@pytest.mark.parametrize("place", range(2))
def test_prepared_statements_go_on_after_errors(sessions: sessionmaker[Session], place: int) -> None:
    bad = dividing(*[0, 3] if place == 0 else [3, 0])
    for _ in range(10):
        with database.transaction(sessions) as session:
            with pytest.raises(DataError), session.begin_nested():
                statements.fetch_all(session, bad)
            assert divide(session) == [[(3, "it's 100%")]] * 2
        with pytest.raises(DataError), database.transaction(sessions) as session:
            statements.fetch_all(session, bad)
        for _ in range(6):
            with database.transaction(sessions) as session:
                assert divide(session) == [[(3, "it's 100%")]] * 2


def test_a_statement_that_a_failed_pipeline_skipped_is_not_taken_for_prepared(
    database_settings: DatabaseSettings,
) -> None:
    made = database.make_engine(database_settings, pool_size=1)
    sessions = database.make_sessions(made)
    other = Query(Statement("SELECT %(number)s::integer"), {"number": 1})
    # psycopg forgets what it has prepared when it first sees a savepoint rolled back, but not later.
    with database.transaction(sessions) as session, pytest.raises(DataError), session.begin_nested():
        divide_by_zero(session)
    for _ in range(12):
        with database.transaction(sessions) as session:
            with pytest.raises(DataError), session.begin_nested():
                statements.fetch_all(session, [*dividing(0), other])
            assert statements.fetch_all(session, [other]) == [[(1,)]]
    made.dispose()


def test_a_savepoint_that_is_rolled_back_spares_the_transaction(sessions: sessionmaker[Session]) -> None:
    with database.transaction(sessions) as session:
        divide(session)
        with pytest.raises(DataError), session.begin_nested():
            divide_by_zero(session)
        assert divide(session) == [[(3, "it's 100%")]] * 2


def test_an_error_shows_the_statement_and_none_of_its_values(sessions: sessionmaker[Session]) -> None:
    with (
        pytest.raises(DataError, match="division by zero") as caught,
        database.transaction(sessions) as session,
    ):
        statements.fetch(session, QUOTIENT, {"divisor": 0, "word": "secret"})
    assert QUOTIENT.sql in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("num_statements", [1, 2])
def test_a_lost_connection_is_replaced(
    sessions: sessionmaker[Session], engine: Engine, num_statements: int
) -> None:
    def lose() -> None:
        with database.transaction(sessions) as session, engine.begin() as other:
            process_id = session.scalar(PROCESS)
            other.execute(text("SELECT pg_terminate_backend(:id, 10000)"), {"id": process_id})
            statements.fetch_all(session, dividing(*[3] * num_statements))

    with pytest.raises(OperationalError) as caught:
        lose()
    assert caught.value.connection_invalidated
    with database.transaction(sessions) as session:
        assert divide(session) == [[(3, "it's 100%")]] * 2


def test_a_connection_lost_amid_a_pipeline_is_replaced(
    sessions: sessionmaker[Session], engine: Engine
) -> None:
    with database.transaction(sessions) as session:
        process_id = session.scalar(PROCESS)

    def kill() -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            sleeping = text(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = :id AND wait_event = 'PgSleep'"
            )
            eventually(lambda: other.scalar(sleeping, {"id": process_id}))
            other.execute(text("SELECT pg_terminate_backend(:id, 10000)"), {"id": process_id})

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(OperationalError) as caught, database.transaction(sessions) as session:
        statements.fetch_all(session, [*dividing(3), Query(SLEEP, {"seconds": 60.0}), *dividing(3)])
    killer.join()
    assert caught.value.connection_invalidated
    with database.transaction(sessions) as session:
        assert divide(session) == [[(3, "it's 100%")]] * 2


def test_statements_of_one_pipeline_run_in_order_and_in_the_transaction(
    sessions: sessionmaker[Session],
) -> None:
    add = Statement("INSERT INTO tenants (id, name) VALUES (%(id)s::uuid, 'new') RETURNING name")
    count = Statement("SELECT count(*) FROM tenants WHERE id = %(id)s::uuid")
    given = {"id": uuid7()}
    with sessions() as session:
        asked = [Query(count, given), Query(add, given), Query(count, given)]
        assert statements.fetch_all(session, asked) == [[(0,)], [("new",)], [(1,)]]
        assert statements.fetch_all(session, []) == []
        session.rollback()
        assert statements.fetch_all(session, [Query(count, given)] * 2) == [[(0,)], [(0,)]]


@pytest.mark.parametrize("place", range(3))
def test_a_statement_that_fails_ends_its_pipeline_and_spares_the_next(
    sessions: sessionmaker[Session], place: int
) -> None:
    divisors = [2, 3, 4]
    bad = [*divisors[:place], 0, *divisors[place + 1 :]]
    with pytest.raises(DataError, match="division by zero"), database.transaction(sessions) as session:
        statements.fetch_all(session, dividing(*bad))
    with database.transaction(sessions) as session:
        assert [rows[0][0] for rows in statements.fetch_all(session, dividing(*divisors))] == [6, 4, 3]


def test_a_statement_belongs_to_the_transaction_and_sees_pending_changes(
    sessions: sessionmaker[Session],
) -> None:
    find = Statement("SELECT name FROM tenants WHERE id = %(id)s::uuid")
    with sessions() as session:
        session.add(Tenant(id=(tenant_id := uuid7()), name="pending"))
        assert statements.fetch(session, find, {"id": tenant_id}) == [("pending",)]
        session.rollback()
        assert statements.fetch(session, find, {"id": tenant_id}) == []


def test_the_isolation_of_a_special_transaction_holds_for_statements(
    database_settings: DatabaseSettings,
) -> None:
    show = Statement(
        "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')"
    )
    made = database.make_engine(database_settings, pool_size=1)
    found: list[tuple[object, ...]] = []
    for options in ({"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}, {}):
        with Session(made.execution_options(**options)) as session:
            found += statements.fetch(session, show, {})
    made.dispose()
    assert found == [("repeatable read", "on"), ("read committed", "off")]


def test_listeners_hear_of_statements(sessions: sessionmaker[Session]) -> None:
    heard: list[tuple[str, Mapping[str, object]]] = []

    def note(_connection: object, _cursor: object, sql: str, given: Any, *_: object) -> None:  # noqa: ANN401
        heard.append((sql, given))

    with database.transaction(sessions) as session:
        event.listen(session.connection(), "before_cursor_execute", note)
        divide(session)
    assert heard == [(QUOTIENT.sql, {"divisor": 4, "word": ""})] * 2


def test_an_event_loop_sends_the_same_statements(database_settings: DatabaseSettings, engine: Engine) -> None:
    """Through one connection: values, errors and the loss of a connection are as they are in a thread."""
    sets = Statement(f"SELECT * FROM unnest({', '.join(f'%({kind})s::{kind}[]' for kind in VALUES)})")  # noqa: S608

    async def run() -> None:
        transactions = Transactions(database_settings.model_copy(update={"pool_size": 1}))
        rows = await transactions.run_across(lambda session: statements.fetch(session, sets, VALUES))
        assert rows == list(zip(*VALUES.values(), strict=True))
        with pytest.raises(DataError, match="division by zero"):
            await transactions.run_across(divide_by_zero)
        process_id = await transactions.run_across(lambda session: session.scalar(PROCESS))
        with engine.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:id, 10000)"), {"id": process_id})
        assert await transactions.run_across(divide) == [[(3, "it's 100%")]] * 2  # on another one
        await transactions.close()

    asyncio.run(run())


@pytest.mark.parametrize("others", [0, 1])
def test_a_statement_whose_caller_leaves_spares_the_pool(
    database_settings: DatabaseSettings, others: int
) -> None:
    begun = asyncio.Event()

    def sleep(session: Session) -> None:
        begun.set()
        statements.fetch_all(session, [*dividing(*[3] * others), Query(SLEEP, {"seconds": PATIENCE})])

    async def run() -> None:
        transactions = Transactions(database_settings.model_copy(update={"pool_size": 1}))
        sleeping = asyncio.create_task(transactions.run_across(sleep))
        await begun.wait()
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        assert await transactions.run_across(divide) == [[(3, "it's 100%")]] * 2
        await transactions.close()

    asyncio.run(run())


def test_rows_in_sets_are_inserted_in_order(sessions: sessionmaker[Session]) -> None:
    ids = [uuid7(), uuid7()]
    values: dict[str, list[object]] = {"id": [*ids], "name": ["ä'\"%s", "b"]}
    with sessions() as session:
        query = statements.insert_set(Tenant, values, then="RETURNING id, name")
        assert statements.fetch(session, *query) == list(zip(*values.values(), strict=True))
        again = statements.insert_set(Tenant, values, then="ON CONFLICT DO NOTHING RETURNING id")
        assert statements.fetch(session, *again) == []
        session.rollback()
