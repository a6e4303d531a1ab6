"""Keys verified beside guessers, and by the database's clock."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from api.runtime.api_keys import ApiKeys
from api.runtime.database import Transactions
from api.runtime.key_lookups import KeyLookups
from jobs.database import database_now
from jobs.errors import AuthenticationError
from jobs.models import DEFAULT_TENANT
from jobs.models.tenant import ApiKey
from jobs.settings import BrokerSettings, DatabaseSettings, Settings
from jobs.tenants import keys
from jobs.tenants.keys import KeyRecord, NewKey, Scope
from support import PATIENCE

T = TypeVar("T")
NUM_GUESSES = 400


class CountedTransactions(Transactions):
    """Counts the looks across tenants, of which a key needs one."""

    num_looks = 0

    async def run_across(self, verb: Callable[[Session], T]) -> T:
        self.num_looks += 1
        return await super().run_across(verb)


class NotedKeys(ApiKeys):
    """Tells when what a look has found is kept."""

    def __init__(self, transactions: Transactions, settings: Settings, *, clock: Callable[[], float]) -> None:
        super().__init__(transactions, settings, clock=clock)
        self.has_kept = asyncio.Event()

    async def _look_up(self, secret: str, digest: bytes) -> Any:  # noqa: ANN401  # a class of the module's own
        found = await super()._look_up(secret, digest)
        self.has_kept.set()
        return found


def verifying(
    database: DatabaseSettings,
    test: Callable[[NotedKeys, CountedTransactions], Coroutine[Any, Any, None]],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    async def run() -> None:
        transactions = CountedTransactions(database)
        settings = Settings(database=database, broker=BrokerSettings(url=SecretStr("redis://127.0.0.1:1")))
        try:
            async with asyncio.timeout(30):
                await test(NotedKeys(transactions, settings, clock=clock), transactions)
        finally:
            await transactions.close()

    asyncio.run(run())


@pytest.fixture
def made(sessions: sessionmaker[Session]) -> NewKey:
    """A key that the API has not seen."""
    with sessions.begin() as session:
        half_an_hour = database_now(session) + timedelta(minutes=30)
        return keys.create(
            session, tenant_id=DEFAULT_TENANT, name="", scopes=[Scope.READ], expires_at=half_an_hour
        )


def test_a_key_that_was_never_seen_waits_for_no_guesses(
    database_settings: DatabaseSettings, made: NewKey
) -> None:
    async def test(api_keys: ApiKeys, transactions: CountedTransactions) -> None:
        async def guess() -> str:
            with pytest.raises(AuthenticationError) as refused:
                await api_keys.verify(f"Bearer lb_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}")
            return refused.value.message

        guesses = [asyncio.create_task(guess()) for _ in range(NUM_GUESSES)]
        nearly = asyncio.create_task(guess_of(api_keys, made))
        caller = await asyncio.create_task(api_keys.verify(f"Bearer {made.secret}"))  # asks after all of them
        assert caller.key_id == made.row.id
        assert transactions.num_looks <= 3, "two that had begun, and one for all who came meanwhile"
        assert set(await asyncio.gather(*guesses, nearly)) == {
            "Incorrect API key provided: there is no such key."
        }
        assert transactions.num_looks <= 3

    verifying(database_settings, test)


def test_a_request_waits_for_no_note_of_its_key_s_use(
    database_settings: DatabaseSettings, sessions: sessionmaker[Session], made: NewKey
) -> None:
    async def test(api_keys: ApiKeys, _transactions: CountedTransactions) -> None:
        with sessions.begin() as session:  # nobody can write its row
            session.execute(select(ApiKey.id).where(ApiKey.id == made.row.id).with_for_update())
            await api_keys.verify(f"Bearer {made.secret}")

    verifying(database_settings, test)


def test_a_key_in_use_is_refreshed_before_a_request_must_wait_for_that(
    database_settings: DatabaseSettings, sessions: sessionmaker[Session], made: NewKey
) -> None:
    now = 0.0

    async def test(api_keys: NotedKeys, transactions: CountedTransactions) -> None:
        nonlocal now

        async def looks_of_verifying(*, at: float) -> int:
            nonlocal now
            now = at
            api_keys.has_kept.clear()
            before = transactions.num_looks
            assert (await api_keys.verify(f"Bearer {made.secret}")).key_id == made.row.id
            return transactions.num_looks - before

        assert await looks_of_verifying(at=0) == 1
        assert await looks_of_verifying(at=3.9) == 0
        assert not api_keys.has_kept.is_set()
        assert await looks_of_verifying(at=4.1) == 0
        assert await looks_of_verifying(at=4.9) == 0
        await api_keys.has_kept.wait()
        assert await looks_of_verifying(at=5.1) == 0, "the look that began after four fifths of its time"
        assert transactions.num_looks == 2
        with sessions.begin() as session:
            keys.revoke(session, made.row)
        assert await looks_of_verifying(at=9.0) == 0
        await api_keys.has_kept.wait()
        with pytest.raises(AuthenticationError, match="revoked"):
            await looks_of_verifying(at=9.1)  # what was found before would hold until 9.9

    verifying(database_settings, test, clock=lambda: now)


async def guess_of(api_keys: ApiKeys, made: NewKey) -> str:
    """What a key is told that has the public part of a good one."""
    with pytest.raises(AuthenticationError) as refused:
        await api_keys.verify(f"Bearer lb_{made.row.handle}_{secrets.token_urlsafe(32)}")
    return refused.value.message


def test_a_key_that_is_asked_for_as_the_last_queries_end_is_looked_up(
    database_settings: DatabaseSettings, made: NewKey
) -> None:
    class Held(Transactions):
        """Its look-ups end together."""

        read = asyncio.Semaphore(0)
        may_end = asyncio.Event()

        async def run_across(self, verb: Callable[[Session], T]) -> T:
            found = await super().run_across(verb)
            self.read.release()
            await self.may_end.wait()
            return found

    async def test() -> None:
        transactions = Held(database_settings)
        lookups = KeyLookups(transactions)
        try:
            async with asyncio.timeout(PATIENCE):
                ending: list[asyncio.Task[KeyRecord]] = []
                for _ in range(2):
                    ending.append(asyncio.create_task(lookups.find("lb_0_x" + str(len(ending)))))
                    await transactions.read.acquire()
                transactions.may_end.set()
                last = await asyncio.create_task(lookups.find(made.secret))
                assert last.row is not None
                await asyncio.gather(*ending)
        finally:
            await transactions.close()

    asyncio.run(test())


@pytest.fixture
def database_an_hour_ahead(sessions: sessionmaker[Session]) -> Iterator[None]:
    """New connections see a clock that this host does not agree with."""
    with sessions.begin() as session:
        session.execute(
            text(
                "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS"
                " $$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$"
            )
        )
        name = session.scalar(text("SELECT current_database()"))
        session.execute(text(f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog'))
    try:
        yield
    finally:
        with sessions.begin() as session:
            session.execute(text(f'ALTER DATABASE "{name}" RESET search_path'))
            session.execute(text("DROP FUNCTION public.clock_timestamp()"))


@pytest.mark.usefixtures("database_an_hour_ahead")
def test_a_key_expires_by_the_clock_of_the_database(
    database_settings: DatabaseSettings, made: NewKey
) -> None:
    async def test(api_keys: ApiKeys, _: CountedTransactions) -> None:
        with pytest.raises(AuthenticationError, match="expired"):
            await api_keys.verify(f"Bearer {made.secret}")

    verifying(database_settings, test)
