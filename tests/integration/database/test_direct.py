"""Hot statements sent straight to libpq do what they do through SQLAlchemy."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    Boolean,
    DateTime,
    Engine,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Text,
    Uuid,
    bindparam,
    text,
)
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.types import TypeEngine

from api.runtime.database import Transactions
from jobs import database
from jobs.database import direct
from jobs.database.direct import Query
from jobs.database.hot import PREPARED
from jobs.database.row_sets import array_parameters
from jobs.ids import uuid7
from jobs.models import Tenant
from jobs.settings import DatabaseSettings
from support import PATIENCE, eventually

KINDS: dict[str, tuple[TypeEngine[Any], list[object]]] = {
    "a": (Uuid(), [UUID(int=7), UUID(int=0)]),
    "b": (Integer(), [-1, 2**31 - 1]),
    "c": (Text(), ["ä'\"\\{}\n", ""]),
    "d": (LargeBinary(), [b"\0\xff", b""]),
    "e": (Boolean(), [True, False]),
    "f": (Float(53), [0.1, -1e300]),
    "g": (DateTime(timezone=True), [datetime(2026, 2, 1, 3, 4, 5, 6, tzinfo=UTC)] * 2),
    "h": (Interval(), [timedelta(days=-3, microseconds=1), timedelta(0)]),
}
SETS = (
    text(f"SELECT * FROM unnest({', '.join(f':{name}' for name in KINDS)})")  # noqa: S608  # built from constants
    .bindparams(*array_parameters(**{name: kind for name, (kind, _) in KINDS.items()}))
    .columns(**{name: kind for name, (kind, _) in KINDS.items()})
    .execution_options(**PREPARED)
)
SINGLE = (
    text(f"SELECT {', '.join(f':{name} AS {name}' for name in KINDS)}")
    .bindparams(*(bindparam(name, type_=kind) for name, (kind, _) in KINDS.items()))
    .columns(**{name: kind for name, (kind, _) in KINDS.items()})
    .execution_options(**PREPARED)
)
QUOTIENT = (
    text("SELECT 12 / :divisor, 'it''s 100%' || :word")
    .bindparams(bindparam("divisor", type_=Integer()), bindparam("word", type_=Text()))
    .execution_options(**PREPARED)
)


@pytest.fixture
def sessions(database_settings: DatabaseSettings) -> Iterator[sessionmaker[Session]]:
    """On a single connection."""
    made = database.make_engine(database_settings, pool_size=1)
    yield database.make_sessions(made)
    made.dispose()


def names(session: Session) -> list[str]:
    return list(session.scalars(text("SELECT name FROM pg_prepared_statements ORDER BY name")))


def test_every_kind_of_value_comes_back_as_it_was(sessions: sessionmaker[Session]) -> None:
    arrays = {name: values for name, (_, values) in KINDS.items()}
    with sessions() as session:
        rows = direct.fetch(session, SETS, arrays)
        assert rows == list(zip(*arrays.values(), strict=True))
        assert rows == [tuple(row) for row in session.execute(SETS, arrays)]
        for row in rows:
            assert direct.fetch(session, SINGLE, dict(zip(KINDS, row, strict=True))) == [row]
        nothing = dict.fromkeys(KINDS)
        assert direct.fetch(session, SINGLE, nothing) == [tuple(nothing.values())]
        assert direct.fetch(session, SETS, {name: [None] for name in KINDS}) == [tuple(nothing.values())]


def test_a_statement_is_prepared_once_on_a_connection(sessions: sessionmaker[Session]) -> None:
    found = []
    for _ in range(2):
        with database.transaction(sessions) as session:
            direct.fetch(session, QUOTIENT, {"divisor": 3, "word": "!"})
            found.append(names(session))
    assert found[0] == found[1]
    assert len(found[0]) == 1


def test_a_connection_whose_last_transaction_was_special_takes_them_again(
    database_settings: DatabaseSettings,
) -> None:
    made = database.make_engine(database_settings, pool_size=1)
    given = {"divisor": 3, "word": "!"}
    found = []
    try:
        for options in ({"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}, {}):
            with Session(made.execution_options(**options)) as session:
                assert direct.fetch(session, QUOTIENT, given) == [(4, "it's 100%!")]
                found.append(bool(sent_straight(session)))
    finally:
        made.dispose()
    assert found == [False, True]


def sent_straight(session: Session) -> list[str]:
    return [each for each in names(session) if each.startswith("longbatch_")]


def test_its_errors_are_sqlalchemy_s_and_a_rolled_back_session_goes_on(
    sessions: sessionmaker[Session],
) -> None:
    def divide(divisor: int, word: str) -> Sequence[tuple[object, ...]]:
        with database.transaction(sessions) as session:
            return direct.fetch(session, QUOTIENT, {"divisor": divisor, "word": word})

    for divisor, word in ((0, "x"), (2**31, "x"), (1, "a\0b")):
        with pytest.raises(DataError):
            divide(divisor, word)
        assert divide(3, "") == [(4, "it's 100%")]
        with sessions() as session:
            assert len(names(session)) == 1


def test_a_savepoint_that_is_rolled_back_spares_the_transaction(sessions: sessionmaker[Session]) -> None:
    given = {"divisor": 3, "word": "!"}
    with database.transaction(sessions) as session:
        session.execute(QUOTIENT, given)  # the driver drops all that is prepared, as it has prepared this
        direct.fetch(session, QUOTIENT, given)
        with pytest.raises(DataError), session.begin_nested():
            session.execute(QUOTIENT, given | {"divisor": 0})
        session.execute(text("SELECT"))
        assert direct.fetch(session, QUOTIENT, given) == [(4, "it's 100%!")]


def test_a_lost_connection_is_replaced(sessions: sessionmaker[Session], engine: Engine) -> None:
    def lose() -> None:
        with database.transaction(sessions) as session, engine.begin() as other:
            process_id = session.scalar(text("SELECT pg_backend_pid()"))
            other.execute(text("SELECT pg_terminate_backend(:id, 10000)"), {"id": process_id})
            direct.fetch(session, QUOTIENT, {"divisor": 3, "word": ""})

    with pytest.raises(OperationalError) as caught:
        lose()
    assert caught.value.connection_invalidated
    with database.transaction(sessions) as session:
        assert direct.fetch(session, QUOTIENT, {"divisor": 4, "word": ""}) == [(3, "it's 100%")]


def test_statements_of_one_message_run_in_order_and_in_the_transaction(
    sessions: sessionmaker[Session],
) -> None:
    adds = text("INSERT INTO tenants (id, name) VALUES (:id, 'new') RETURNING name").bindparams(
        bindparam("id", type_=Uuid())
    )
    counts = text("SELECT count(*) FROM tenants WHERE id = :id").bindparams(bindparam("id", type_=Uuid()))
    given = {"id": uuid7()}
    with sessions() as session:
        asked = [Query(counts, given), Query(adds, given), Query(counts, given)]
        assert direct.fetch_all(session, asked) == [[(0,)], [("new",)], [(1,)]]
        assert direct.fetch_all(session, []) == []
        session.rollback()
        assert direct.fetch_all(session, [Query(counts, given)] * 2) == [[(0,)], [(0,)]]


@pytest.mark.parametrize("place", range(3))
def test_a_statement_that_fails_ends_its_message_and_spares_the_next(
    sessions: sessionmaker[Session], place: int
) -> None:
    queries = [Query(QUOTIENT, {"divisor": 2 + each, "word": ""}) for each in range(3)]
    bad = [*queries[:place], Query(QUOTIENT, {"divisor": 0, "word": ""}), *queries[place + 1 :]]
    with pytest.raises(DataError, match="division by zero"), database.transaction(sessions) as session:
        direct.fetch_all(session, bad)
    with database.transaction(sessions) as session:
        assert [rows[0][0] for rows in direct.fetch_all(session, queries)] == [6, 4, 3]


def test_a_connection_lost_below_a_message_is_replaced(
    sessions: sessionmaker[Session], engine: Engine
) -> None:
    def lose() -> None:
        with database.transaction(sessions) as session, engine.begin() as other:
            process_id = session.scalar(text("SELECT pg_backend_pid()"))
            other.execute(text("SELECT pg_terminate_backend(:id, 10000)"), {"id": process_id})
            direct.fetch_all(session, [Query(QUOTIENT, {"divisor": 3, "word": ""})] * 2)

    with pytest.raises(OperationalError) as caught:
        lose()
    assert caught.value.connection_invalidated
    with database.transaction(sessions) as session:
        queries = [Query(QUOTIENT, {"divisor": 4, "word": ""})] * 2
        assert direct.fetch_all(session, queries) == [[(3, "it's 100%")]] * 2


def test_a_message_cut_off_while_it_waits_leaves_a_usable_pool(
    sessions: sessionmaker[Session], engine: Engine
) -> None:
    sleeps = text("SELECT pg_sleep(:seconds)::text").bindparams(bindparam("seconds", type_=Float(53)))
    process_id: list[int] = []

    def kill() -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            sleeping = text(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = :id AND wait_event = 'PgSleep'"
            )
            eventually(lambda: other.scalar(sleeping, {"id": process_id[0]}))
            other.execute(text("SELECT pg_terminate_backend(:id, 10000)"), {"id": process_id[0]})

    with database.transaction(sessions) as session:
        process_id.append(session.scalar(text("SELECT pg_backend_pid()")))
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(OperationalError) as caught, database.transaction(sessions) as session:
        direct.fetch_all(
            session, [Query(QUOTIENT, {"divisor": 3, "word": ""}), Query(sleeps, {"seconds": 60.0})]
        )
    killer.join()
    assert caught.value.connection_invalidated
    with database.transaction(sessions) as session:
        assert direct.fetch(session, QUOTIENT, {"divisor": 4, "word": ""}) == [(3, "it's 100%")]


def test_it_belongs_to_the_transaction_and_sees_pending_changes(sessions: sessionmaker[Session]) -> None:
    found = text("SELECT name FROM tenants WHERE id = :id").bindparams(bindparam("id", type_=Uuid()))
    with sessions() as session:
        session.add(Tenant(id=(tenant_id := uuid7()), name="pending"))
        assert direct.fetch(session, found, {"id": tenant_id}) == [("pending",)]
        session.rollback()
        assert direct.fetch(session, found, {"id": tenant_id}) == []


def test_what_is_asked_later_goes_first_in_the_next_message(sessions: sessionmaker[Session]) -> None:
    with database.transaction(sessions) as session:
        early = direct.later(session, Query(QUOTIENT, {"divisor": 2, "word": ""}))
        other = direct.later(session, Query(QUOTIENT, {"divisor": 3, "word": ""}))
        assert direct.fetch(session, QUOTIENT, {"divisor": 4, "word": ""}) == [(3, "it's 100%")]
        assert [early(), other(), early()] == [[(6, "it's 100%")], [(4, "it's 100%")], [(6, "it's 100%")]]
        last = direct.later(session, Query(QUOTIENT, {"divisor": 6, "word": ""}))
        assert last() == [(2, "it's 100%")]  # though nothing was sent since


INSERTION = Query(text("INSERT INTO asked_later SELECT"), {})


@pytest.fixture
def num_later(sessions: sessionmaker[Session]) -> Iterator[Callable[[], int]]:
    """How often INSERTION was committed."""

    def num_rows() -> int:
        with sessions() as session:
            return session.scalars(text("SELECT count(*) FROM asked_later")).one()

    with sessions.begin() as session:
        session.execute(text("CREATE TABLE asked_later ()"))
    yield num_rows
    with sessions.begin() as session:
        session.execute(text("DROP TABLE asked_later"))


def test_what_is_asked_later_goes_with_the_commit(
    sessions: sessionmaker[Session], num_later: Callable[[], int]
) -> None:
    with sessions() as session:
        direct.later(session, INSERTION)
        session.commit()
        assert num_later() == 1
        assert direct.fetch(session, QUOTIENT, {"divisor": 4, "word": ""}) == [(3, "it's 100%")]
        with session.begin_nested():
            direct.later(session, INSERTION)
        session.rollback()
    assert num_later() == 1


def test_what_was_to_go_with_a_commit_that_came_to_nothing_goes_with_no_other(
    sessions: sessionmaker[Session], num_later: Callable[[], int]
) -> None:
    with sessions() as session:
        direct.later(session, INSERTION)
        session.rollback()
        direct.later(session, Query(QUOTIENT, {"divisor": 0, "word": ""}))
        with pytest.raises(DataError):
            session.commit()
        session.rollback()
        assert direct.fetch(session, QUOTIENT, {"divisor": 4, "word": ""}) == [(3, "it's 100%")]
        session.commit()
    assert num_later() == 0


def test_a_connection_keeps_a_bounded_number_of_prepared_statements(sessions: sessionmaker[Session]) -> None:
    with database.transaction(sessions) as session:
        for number in range(direct.MAX_NAMES + 20):
            assert direct.fetch(session, text(f"SELECT {number}"), {}) == [(number,)]
        assert len(names(session)) <= direct.MAX_NAMES + 1


def test_an_event_loop_sends_the_same_messages(database_settings: DatabaseSettings, engine: Engine) -> None:
    """Through one connection: values, errors, and what is prepared survive as they do in a thread."""
    arrays = {name: values for name, (_, values) in KINDS.items()}

    async def run() -> None:
        transactions = Transactions(database_settings.model_copy(update={"pool_size": 1}))
        for _ in range(2):
            rows = await transactions.run_across(lambda session: direct.fetch(session, SETS, arrays))
            assert rows == list(zip(*arrays.values(), strict=True))
        with pytest.raises(DataError, match="division by zero"):
            await transactions.run_across(divide_by_zero)
        process_id = await transactions.run_across(lambda session: session.scalar(PROCESS))
        with engine.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:id, 10000)"), {"id": process_id})
        assert await transactions.run_across(divide) == [[(3, "it's 100%")]] * 2  # on another one
        await transactions.close()

    asyncio.run(run())


def test_a_message_whose_caller_leaves_spares_the_pool(database_settings: DatabaseSettings) -> None:
    sleeps = text("SELECT pg_sleep(:seconds)::text").bindparams(bindparam("seconds", type_=Float(53)))
    begun = asyncio.Event()

    def sleep(session: Session) -> None:
        begun.set()
        direct.fetch(session, sleeps, {"seconds": PATIENCE})

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


PROCESS = text("SELECT pg_backend_pid()")


def divide(session: Session) -> list[Sequence[tuple[object, ...]]]:
    return direct.fetch_all(session, [Query(QUOTIENT, {"divisor": 4, "word": ""})] * 2)


def divide_by_zero(session: Session) -> None:
    direct.fetch_all(session, [Query(QUOTIENT, {"divisor": each, "word": ""}) for each in (1, 0, 2)])
