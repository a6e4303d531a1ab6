"""Behind a pooler that drops what a connection asks for when it starts, as PgBouncer does."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from api.runtime.database import Transactions
from jobs import database
from jobs.database import statements
from jobs.database.statements import Query, Statement
from jobs.models import DEFAULT_TENANT
from jobs.settings import DatabaseSettings

LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
SHOW = text("SELECT " + ", ".join(f"current_setting('{name}')" for name in LIMITS))


@pytest.fixture
def pooled(database_settings: DatabaseSettings) -> Iterator[DatabaseSettings]:
    """The database through a listener that passes on everything but startup options."""
    url = make_url(database_settings.url.get_secret_value())
    assert url.host
    assert url.port
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, args=(listener, (url.host, url.port)), daemon=True)
    thread.start()
    through = url.set(port=listener.getsockname()[1]).update_query_dict(
        {"sslmode": "disable", "gssencmode": "disable"}
    )
    yield DatabaseSettings(
        url=SecretStr(through.render_as_string(hide_password=False)),
        statement_timeout_seconds=7,
        lock_timeout_seconds=0.2,
        idle_in_transaction_timeout_seconds=9,
    )
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(timeout=60)
    assert not thread.is_alive()


def serve(listener: socket.socket, server: tuple[str, int]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        upstream = socket.create_connection(server)
        upstream.sendall(without_options(startup_packet(client)))
        for source, sink in ((client, upstream), (upstream, client)):
            threading.Thread(target=pump, args=(source, sink), daemon=True).start()


def startup_packet(client: socket.socket) -> bytes:
    (length,) = struct.unpack("!I", client.recv(4, socket.MSG_WAITALL))
    return client.recv(length - 4, socket.MSG_WAITALL)


def without_options(packet: bytes) -> bytes:
    """The packet's version and parameters (pairs of strings that end with a zero byte) but one."""
    words = packet[4:].rstrip(b"\0").split(b"\0")
    parameters = dict(zip(words[::2], words[1::2], strict=True))
    assert parameters.pop(b"options")
    body = packet[:4] + b"".join(each + b"\0" for pair in parameters.items() for each in pair) + b"\0"
    return struct.pack("!I", len(body) + 4) + body


def pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError), sink:
        while received := source.recv(65536):
            sink.sendall(received)


def test_each_transaction_has_the_time_limits_that_a_pooler_dropped(pooled: DatabaseSettings) -> None:
    made = database.make_engine(pooled, pool_size=1)
    for _ in range(2):  # the second time on a connection that was used before
        with Session(made) as session, session.begin():
            assert tuple(session.execute(SHOW).one()) == ("7s", "200ms", "9s")
    made.dispose()


@pytest.mark.usefixtures("engine")
def test_the_api_s_transactions_have_them_too(pooled: DatabaseSettings) -> None:
    async def shown() -> list[tuple[str, ...]]:
        transactions = Transactions(pooled)
        found = [
            await transactions.run(lambda session: tuple(session.execute(SHOW).one()), tenant_ids=ids)
            for ids in ([DEFAULT_TENANT], [DEFAULT_TENANT])
        ]
        found.append(await transactions.run_across(lambda session: tuple(session.execute(SHOW).one())))
        await transactions.close()
        return found

    assert asyncio.run(shown()) == [("7s", "200ms", "9s")] * 3


def test_no_lock_is_waited_for_longer_than_set(engine: Engine, pooled: DatabaseSettings) -> None:
    made = database.make_engine(pooled, pool_size=1)
    with engine.begin() as holder:
        holder.execute(text("LOCK TABLE engines"))
        with made.connect() as connection, pytest.raises(DBAPIError, match="lock timeout"):
            connection.execute(text("SELECT * FROM engines"))
    made.dispose()


def test_nothing_of_a_transaction_stays_in_its_session(pooled: DatabaseSettings) -> None:
    """The session serves others next."""
    made = database.make_engine(pooled, pool_size=1)
    with Session(made) as session, session.begin():
        session.execute(text("SELECT 1"))
    with made.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert tuple(connection.execute(SHOW).one()) == ("0", "0", "0")
    made.dispose()


def test_nothing_is_prepared_in_a_session_that_serves_others_next(pooled: DatabaseSettings) -> None:
    made = database.make_engine(pooled, pool_size=1)
    asked = [Query(Statement("SELECT %(number)s::integer"), {"number": each}) for each in (1, 2)]
    for _ in range(20):
        with Session(made) as session, session.begin():
            assert statements.fetch_all(session, asked) == [[(1,)], [(2,)]]
            assert session.scalar(text("SELECT count(*) FROM pg_prepared_statements")) == 0
    made.dispose()


@pytest.mark.usefixtures("engine")
def test_the_api_prepares_nothing_there_either(pooled: DatabaseSettings) -> None:
    async def numbers() -> list[int | None]:
        transactions = Transactions(pooled.model_copy(update={"pool_size": 1}))
        count = text("SELECT count(*) FROM pg_prepared_statements")
        found = [await transactions.run_across(lambda session: session.scalar(count)) for _ in range(20)]
        await transactions.close()
        return found

    assert asyncio.run(numbers()) == [0] * 20


def test_a_direct_connection_sets_them_once(database_settings: DatabaseSettings) -> None:
    settings = database_settings.model_copy(update={"lock_timeout_seconds": 0.2})
    made = database.make_engine(settings, pool_size=1)
    with made.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert tuple(connection.execute(SHOW).one()) == ("30s", "200ms", "30s")
    made.dispose()
