"""Jobs that are submitted one at a time are stored whole, once, and within their tenant's quota."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete as delete_jobs
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from api.runtime.database import Transactions
from api.runtime.group_commit import GroupCommit
from api.runtime.quotas import QuotaCache
from jobs.database import transaction
from jobs.errors import JobQuotaError, UnavailableError
from jobs.models import DEFAULT_TENANT, Job, PromptText
from jobs.models.tenant import QuotaAllowance
from jobs.prompts import store
from jobs.prompts.store import NewText
from jobs.sealing.content import ContentSealer
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from jobs.submission import Submitter
from jobs.tenants import quotas
from jobs.tenants.quotas import TenantLimits
from submitting.group_commits import running
from support import (
    CAPACITY,
    PATIENCE,
    eventually,
    num_waiting_for_locks,
    register_engine,
    spec,
)

WIDE = TenantLimits(max_enqueued_tokens=10**9, max_jobs=1000, max_requests=1)
Submit = Callable[..., Coroutine[None, None, Job]]


@asynccontextmanager
async def submitting(settings: DatabaseSettings, limits: TenantLimits = WIDE) -> AsyncIterator[Submit]:
    """Submit through a group commit whose tenant has an allowance: it has stored two jobs."""
    transactions = Transactions(settings)

    by = Submitter(DEFAULT_TENANT, CAPACITY, QuotaCache().admission(DEFAULT_TENANT, limits))

    async def submit(name: str, **fields: Any) -> Job:  # noqa: ANN401  # of each field's type
        async with asyncio.timeout(PATIENCE):
            return await commits.submit(spec(**{"custom_id": name, "prompt": name} | fields), by)

    async with running(GroupCommit(transactions), transactions) as commits:
        await submit("first")  # makes an allowance
        await submit("second")  # takes of it
        yield submit


def stored(sessions: sessionmaker[Session]) -> list[str | None]:
    with sessions() as session:
        return list(session.scalars(select(Job.custom_id).order_by(Job.id)))


def test_what_was_submitted_is_stored_whole(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def submit_two() -> Job:
        async with submitting(database_settings) as submit:
            job = await submit("quick", metadata={"a": "b"}, webhook_url="https://example.com/")
            await submit("besides", guide=NewText("{}"))
            return job

    with transaction(sessions) as session:
        register_engine(session)
    job = asyncio.run(submit_two())
    assert stored(sessions) == ["first", "second", "quick", "besides"]
    with sessions() as session:
        row, first = session.get_one(Job, job.id), session.scalars(select(Job).order_by(Job.id)).first()
        assert first is not None
        assert (row.state, row.prompt_tokens, row.reserved_tokens) == (JobState.QUEUED, 100, 164)
        assert (row.labels, row.webhook_url) == ({"a": "b"}, "https://example.com/")
        assert row.text_id is not None
        assert row.text_id == job.text_id
        assert store.load(session, row.text_id).canonical == "quick"
        assert abs((row.created_at - first.created_at).total_seconds()) < PATIENCE
        assert quotas.current_usage(session, DEFAULT_TENANT).jobs == 4


def test_equal_prompts_share_a_text(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def submit_some() -> list[Job]:
        async with submitting(database_settings) as submit:
            together = await asyncio.gather(*(submit(name, prompt="same") for name in "ab"))
            return [*together, await submit("c", prompt="same")]

    jobs = asyncio.run(submit_some())
    assert len({job.text_id for job in jobs}) == 1
    with sessions() as session:
        assert session.scalars(select(PromptText.id).where(PromptText.id == jobs[0].text_id)).all()
        assert {row.text_id for row in session.scalars(select(Job)) if row.custom_id in {*"abc"}} == {
            jobs[0].text_id
        }


def test_a_quota_is_exact_though_others_use_the_allowance_up(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    limits = replace(WIDE, max_jobs=40)

    async def submit_many() -> list[Job | BaseException]:
        async with submitting(database_settings, limits) as submit:
            found: list[Job | BaseException] = []
            for number in range(50):
                if number % 7 == 0:
                    with transaction(sessions) as session:
                        session.execute(update(QuotaAllowance).values(jobs=0))
                found += await asyncio.gather(submit(str(number)), return_exceptions=True)
            return found

    found = asyncio.run(submit_many())
    assert [isinstance(each, JobQuotaError) for each in found] == [False] * 38 + [True] * 12
    assert len(stored(sessions)) == 40


def test_a_job_that_never_fits_fails_as_ever(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def submit_one() -> Job:
        async with submitting(database_settings) as submit:
            return await submit("long", prompt_tokens=10**7)

    job = asyncio.run(submit_one())
    with sessions() as session:
        row = session.get_one(Job, job.id)
        assert row.state == JobState.FAILED
        assert row.error is not None
        assert row.error["code"] == "context_length_exceeded"


def test_connections_that_postgres_closed_cost_no_submission(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    closing = text(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'longbatch-api'"
    )

    async def submit_one() -> None:
        async with submitting(database_settings) as submit:
            with transaction(sessions) as session:
                assert session.scalars(closing).all()
            await submit("after")

    asyncio.run(submit_one())
    assert stored(sessions) == ["first", "second", "after"]


@contextmanager
def breaking(sessions: sessionmaker[Session], *, number: int = 1000) -> Iterator[None]:
    """Let the connection break that stores a job, the first few times, and count how often that is tried."""
    with transaction(sessions) as session:
        session.execute(text("CREATE SEQUENCE num_tries"))
        session.execute(text("GRANT ALL ON SEQUENCE num_tries TO PUBLIC"))
        session.execute(
            text(
                "CREATE FUNCTION breaks() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
                f" IF nextval('num_tries') <= {number} THEN"
                " PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); END IF;"
                " RETURN NEW; END $$"
            )
        )
        session.execute(
            text("CREATE TRIGGER breaks BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION breaks()")
        )
    yield
    with transaction(sessions) as session:
        session.execute(text("DROP FUNCTION breaks CASCADE"))
        session.execute(text("DROP SEQUENCE num_tries"))


def test_a_connection_lost_before_the_commit_costs_no_submission(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def submit_one() -> None:
        async with submitting(database_settings) as submit:
            with breaking(sessions, number=1):
                await submit("lost once")

    asyncio.run(submit_one())
    assert stored(sessions) == ["first", "second", "lost once"]


def test_a_connection_lost_twice_is_an_error_that_stores_nothing(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    async def submit_one() -> None:
        async with submitting(database_settings) as submit:
            with breaking(sessions), pytest.raises(UnavailableError):
                await submit("lost")

    asyncio.run(submit_one())
    assert stored(sessions) == ["first", "second"]


def test_a_text_whose_key_is_gone_is_stored_anew(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    sealed = ContentSealer([b"k" * 32], seals=True).seal_bytes(NewText("same").packed, "texts.body")

    async def submit_two() -> None:
        async with submitting(database_settings) as submit:
            old = await submit("old", prompt="same")
            with transaction(sessions) as session:
                changing = text("UPDATE texts SET body = :body WHERE id = :id")
                session.execute(changing, {"body": sealed, "id": old.text_id})
            new = await submit("new", prompt="same")
            assert new.text_id == old.text_id

    asyncio.run(submit_two())
    with sessions() as session:
        (row,) = session.scalars(select(Job).where(Job.custom_id == "new"))
        assert row.text_id is not None
        assert store.load(session, row.text_id).canonical == "same"


def test_prompts_that_are_deleted_meanwhile_are_locked_in_the_same_order(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    prompts = sorted(["one", "two"], key=lambda each: NewText(each).sha256)
    failed: list[BaseException] = []

    def delete(text_ids: list[UUID]) -> None:
        try:
            with transaction(sessions) as session:
                store.drop_unused(session, text_ids)
        except DBAPIError as error:
            failed.append(error)

    async def submit_while_deleting() -> None:
        async with submitting(database_settings) as submit:
            old = await asyncio.gather(*(submit(each, prompt=each) for each in prompts))
            text_ids = [job.text_id for job in old if job.text_id is not None]
            with sessions() as holder:
                holder.execute(text("SELECT FROM texts WHERE id = :id FOR KEY SHARE"), {"id": text_ids[1]})
                with transaction(sessions) as session:
                    session.execute(delete_jobs(Job).where(Job.id.in_([job.id for job in old])))
                deleting = threading.Thread(target=delete, args=[text_ids])
                deleting.start()
                await asyncio.to_thread(eventually, lambda: num_waiting_for_locks(sessions) >= 1)
                new = asyncio.gather(*(submit(each, prompt=each) for each in reversed(prompts)))
                await asyncio.to_thread(eventually, lambda: num_waiting_for_locks(sessions) >= 2)
                holder.rollback()
                await new
            deleting.join(PATIENCE)

    asyncio.run(submit_while_deleting())
    assert failed == []
    assert len(stored(sessions)) == 4
