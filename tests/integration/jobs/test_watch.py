"""Several tenants share one look at the database; each sees its own jobs alone."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import UUID

import httpx2
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from api.runtime import job_polling
from api.runtime.database import Transactions
from api.runtime.job_polling import INTERVAL, JobPoller
from api_server import ApiProcess
from jobs import ids, lifecycle, queries, tenants
from jobs.errors import UnavailableError
from jobs.models import DEFAULT_TENANT, Job
from jobs.settings import DatabaseSettings
from jobs.tenants import keys
from jobs.tenants.keys import NewKey, Scope
from support import submit_one

Test = Callable[[JobPoller], Coroutine[Any, Any, None]]


@pytest.fixture
def job_id(sessions: sessionmaker[Session]) -> UUID:
    """A job of the default tenant that waits."""
    with sessions.begin() as session:
        return submit_one(session).id


@pytest.fixture
def stranger(sessions: sessionmaker[Session]) -> NewKey:
    """A key of another tenant."""
    with sessions.begin() as session:
        tenant = tenants.create(session, f"t-{secrets.token_hex(4)}")
        return keys.create(session, tenant_id=tenant.id, name="", scopes=list(Scope))


def watching(settings: DatabaseSettings, test: Test) -> None:
    """Run a test beside a watch, whose first look comes once the test has asked."""

    async def run() -> None:
        transactions = Transactions(settings)
        poller = JobPoller(transactions)
        testing = asyncio.create_task(test(poller))
        looking = asyncio.create_task(poller.run())
        try:
            async with asyncio.timeout(30):
                await testing
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await transactions.close()

    asyncio.run(run())


def test_a_stranger_who_asks_in_the_same_look_finds_nothing(
    database_settings: DatabaseSettings, stranger: NewKey, job_id: UUID
) -> None:
    other = stranger.row.tenant_id

    async def test(poller: JobPoller) -> None:
        mine, *theirs = await asyncio.gather(
            poller.now(job_id, tenant_id=DEFAULT_TENANT),
            poller.now(job_id, tenant_id=other),
            poller.until_ended(job_id, tenant_id=other, seconds=20),
        )
        assert mine is not None
        assert (mine.id, theirs) == (job_id, [None, None])

    watching(database_settings, test)


def test_a_stranger_finds_nothing_while_the_owner_waits(
    database_settings: DatabaseSettings,
    sessions: sessionmaker[Session],
    stranger: NewKey,
    job_id: UUID,
) -> None:
    async def test(poller: JobPoller) -> None:
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(poller.until_ended(job_id, tenant_id=DEFAULT_TENANT, seconds=30))
        assert await poller.now(job_id, tenant_id=DEFAULT_TENANT) is not None
        begun_at = loop.time()
        while loop.time() < begun_at + 3 * INTERVAL:  # so that looks for both of them are the same
            assert await poller.now(job_id, tenant_id=stranger.row.tenant_id) is None
        assert not waiting.done()
        await asyncio.to_thread(cancel, sessions, job_id)
        ended = await waiting
        assert ended is not None
        assert ended.state == "cancelled"

    watching(database_settings, test)


Read = tuple[list[UUID], list[UUID]]  # jobs that a look reads, and those that it reads if they have ended


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """What each look reads; the next one for those who wait is ten minutes later unless something happens."""
    found: list[Read] = []
    read = queries.find_jobs

    def noted(session: Session, *, job_ids: Sequence[UUID], ended_ids: Sequence[UUID]) -> dict[UUID, Job]:
        found.append((list(job_ids), list(ended_ids)))
        return read(session, job_ids=job_ids, ended_ids=ended_ids)

    monkeypatch.setattr(queries, "find_jobs", noted)
    monkeypatch.setattr(job_polling, "INTERVAL", 600.0)
    return found


def test_the_job_of_a_new_waiter_is_read_once_and_again_when_it_ends(
    database_settings: DatabaseSettings, sessions: sessionmaker[Session], job_id: UUID, reads: list[Read]
) -> None:
    async def test(poller: JobPoller) -> None:
        waiting = asyncio.create_task(poller.until_ended(job_id, tenant_id=DEFAULT_TENANT, seconds=30))
        for _ in range(4):
            assert await poller.now(job_id, tenant_id=DEFAULT_TENANT) is not None
        assert not waiting.done()
        await asyncio.to_thread(cancel, sessions, job_id)
        poller.poll_now([job_id])
        ended = await waiting
        assert ended is not None
        assert ended.state == "cancelled"

    watching(database_settings, test)
    assert [ended_ids for _, ended_ids in reads] == [[]] * (len(reads) - 1) + [[job_id]]


def test_an_end_that_is_told_while_the_job_is_read_is_not_missed(
    database_settings: DatabaseSettings,
    sessions: sessionmaker[Session],
    job_id: UUID,
    reads: list[Read],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = queries.find_jobs

    async def test(poller: JobPoller) -> None:
        def ends_meanwhile(session: Session, **given: Sequence[UUID]) -> dict[UUID, Job]:
            found = read(session, **given)
            if len(reads) == 1:
                cancel(sessions, job_id)
                poller.poll_now([job_id])
            return found

        monkeypatch.setattr(queries, "find_jobs", ends_meanwhile)
        ended = await poller.until_ended(job_id, tenant_id=DEFAULT_TENANT, seconds=30)
        assert ended is not None
        assert ended.state == "cancelled"

    watching(database_settings, test)
    assert reads == [([job_id], []), ([], [job_id])]


def test_nothing_is_read_while_nobody_asks_and_for_nobody_who_has_his_answer(
    database_settings: DatabaseSettings,
    sessions: sessionmaker[Session],
    job_id: UUID,
    reads: list[Read],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_polling, "INTERVAL", 0.0)  # each look is for all who wait

    async def test(poller: JobPoller) -> None:
        poller.poll_now([job_id])
        await poller._poll(())  # a look for nobody
        assert reads == []
        waiting = asyncio.create_task(poller.until_ended(job_id, tenant_id=DEFAULT_TENANT, seconds=30))
        for _ in range(
            2
        ):  # the waiting one asks during the first, and is answered with the second at the latest
            assert await poller.now(job_id, tenant_id=DEFAULT_TENANT) is not None
        assert poller._waiting
        assert reads[0] == ([job_id], [])
        await asyncio.to_thread(cancel, sessions, job_id)
        await waiting
        reads.clear()
        for _ in range(3):
            assert await poller.now(job_id, tenant_id=DEFAULT_TENANT) is not None
        assert reads == [([job_id], [])] * 3

    watching(database_settings, test)


@pytest.mark.parametrize("num_failed", [1, 2])
def test_a_wait_outlives_one_failed_read_and_no_second(
    database_settings: DatabaseSettings,
    sessions: sessionmaker[Session],
    job_id: UUID,
    monkeypatch: pytest.MonkeyPatch,
    num_failed: int,
) -> None:
    read = queries.find_jobs
    num_left = num_failed

    def failing(session: Session, **given: Sequence[UUID]) -> dict[UUID, Job]:
        nonlocal num_left
        if num_left:
            num_left -= 1
            session.execute(text("SELECT 1 / 0"))
        return read(session, **given)

    monkeypatch.setattr(queries, "find_jobs", failing)

    async def test(poller: JobPoller) -> None:
        waiting = asyncio.create_task(poller.until_ended(job_id, tenant_id=DEFAULT_TENANT, seconds=30))
        once = asyncio.create_task(poller.now(job_id, tenant_id=DEFAULT_TENANT))  # both share a read
        with pytest.raises(UnavailableError):  # its caller decides whether to ask again
            await once
        if num_failed == 2:
            with pytest.raises(UnavailableError):
                await waiting
            return
        assert await poller.now(job_id, tenant_id=DEFAULT_TENANT) is not None
        assert not waiting.done()
        await asyncio.to_thread(cancel, sessions, job_id)
        ended = await waiting
        assert ended is not None
        assert ended.state == "cancelled"

    watching(database_settings, test)


def test_a_caller_that_leaves_while_its_job_is_read_waits_no_longer(
    database_settings: DatabaseSettings, job_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, leaving = queries.find_jobs, list[asyncio.Task[Job | None]]()

    def leaves_meanwhile(session: Session, **given: Sequence[UUID]) -> dict[UUID, Job]:
        if leaving:
            leaving.pop().cancel()  # as a request does whose caller has closed the connection
        return read(session, **given)

    monkeypatch.setattr(queries, "find_jobs", leaves_meanwhile)

    async def test(poller: JobPoller) -> None:
        waiting = asyncio.create_task(poller.until_ended(job_id, tenant_id=DEFAULT_TENANT, seconds=30))
        leaving.append(waiting)
        await asyncio.wait([waiting])
        assert await poller.now(job_id, tenant_id=DEFAULT_TENANT) is not None  # by the next read
        assert waiting.cancelled()
        assert not poller._waiting

    watching(database_settings, test)


def test_a_stranger_s_requests_are_404_while_the_owner_follows(
    server: ApiProcess, http: httpx2.Client, stranger: NewKey, job_id: UUID
) -> None:
    path = f"/v1/jobs/{ids.job_id(job_id)}"
    asked = [path, f"{path}?wait=1", f"{path}/events"] * 16
    with (
        http.stream("GET", f"{path}/events") as events,
        server.client() as owner,
        server.client(api_key=stranger.secret) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        waiting = pool.submit(owner.get, path, params={"wait": 30})
        assert set(pool.map(partial(status_of, other), asked)) == {404}
        assert not waiting.done()
        owner.post(f"{path}/cancel")
        assert waiting.result().json()["state"] == "cancelled"
        assert '"state":"cancelled"' in events.read().decode()


def status_of(client: httpx2.Client, path: str) -> int:
    with client.stream("GET", path) as answer:
        return answer.status_code


def cancel(sessions: sessionmaker[Session], job_id: UUID) -> None:
    with sessions.begin() as session:
        lifecycle.cancel(session, job_id=job_id, tenant_id=DEFAULT_TENANT)
