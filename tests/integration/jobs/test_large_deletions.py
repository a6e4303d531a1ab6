"""What is too large for one request is done in parts, and ends although others go on."""

import asyncio
from collections.abc import Callable, Collection
from typing import TypeVar
from uuid import UUID

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from api.jobs.bulk_routes import cancel_matching
from api.runtime.database import Transactions
from jobs import deletion, summaries
from jobs.database import database_now
from jobs.database.paging import Range
from jobs.errors import NotFoundError
from jobs.models import (
    DEFAULT_TENANT,
    Job,
    Summary,
    SummaryNode,
    WebhookDispatch,
    WebhookEndpoint,
    WebhookEvent,
)
from jobs.queries import JobFilter
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from jobs.summaries import SummaryFilter
from jobs.webhooks import endpoints
from summary_support import planned, run_to_end
from support import job_in, spec, submit_one
from webhook_support import add_endpoint, deliver_all, finish, tries
from worker.maintenance import sweep_deleted

T = TypeVar("T")
PART = 3
ALL = Range(DEFAULT_TENANT, None, 100)


class BusyTransactions(Transactions):
    """Before each of them another job is submitted that matches too."""

    def __init__(self, settings: DatabaseSettings, sessions: sessionmaker[Session]) -> None:
        super().__init__(settings)
        self._sessions = sessions
        self.num_submitted = 0

    async def run(self, verb: Callable[[Session], T], *, tenant_ids: Collection[UUID] | None = None) -> T:
        found = await super().run(verb, tenant_ids=tenant_ids)
        assert self.num_submitted < 20, "it does not end"
        with self._sessions.begin() as session:
            submit_one(session, spec(custom_id="mine"))
        self.num_submitted += 1
        return found


def test_cancelling_by_filter_ends_while_more_jobs_are_submitted(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    with sessions.begin() as session:
        mine = {submit_one(session, spec(custom_id="mine")).id for _ in range(3)}

    async def cancel() -> tuple[int, int]:
        transactions = BusyTransactions(database_settings, sessions)
        which = JobFilter(custom_id="mine").conditions()
        num_cancelled = await cancel_matching(transactions, which, tenant_id=DEFAULT_TENANT)
        await transactions.close()
        return num_cancelled, transactions.num_submitted

    num_cancelled, num_submitted = asyncio.run(cancel())
    assert num_cancelled == len(mine)
    with sessions() as session:
        states = select(Job.id).where(Job.state == JobState.CANCELLED)
        assert set(session.scalars(states)) == mine
        assert count(session, Job) == len(mine) + num_submitted


def count(session: Session, table: type) -> int:
    return session.scalar(select(func.count()).select_from(table)) or 0


def test_a_large_summary_is_gone_at_once_and_its_jobs_in_parts(
    sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries.lifecycle, "_MAX_JOBS", PART)
    with sessions.begin() as session:
        summary_id = planned(session).id
        run_to_end(session)
        num_jobs = count(session, Job)
        assert num_jobs > 2 * PART
    with sessions.begin() as session:
        summaries.remove(session, summary_id, tenant_id=DEFAULT_TENANT)
    with sessions() as session:
        assert count(session, Job) == num_jobs - PART
        for verb in (summaries.get, summaries.cancel, summaries.remove):
            with pytest.raises(NotFoundError):
                verb(session, summary_id, tenant_id=DEFAULT_TENANT)
        assert not summaries.list_summaries(session, SummaryFilter(), ALL).items
    while removed := sweep_deleted(sessions):
        assert removed <= PART
    with sessions() as session:
        assert [count(session, each) for each in (Summary, SummaryNode, Job)] == [0, 0, 0]


def test_a_small_summary_is_gone_with_its_jobs(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        summary_id = planned(session).id
        run_to_end(session)
    with sessions.begin() as session:
        summaries.remove(session, summary_id, tenant_id=DEFAULT_TENANT)
    with sessions() as session:
        assert [count(session, each) for each in (Summary, Job)] == [0, 0]


def test_an_endpoint_with_many_events_due_is_deleted_at_once(
    sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_REMOVED_AT_ONCE", PART)
    endpoint, _ = add_endpoint(sessions, "http://127.0.0.1:9/hook")
    for _ in range(3 * PART):
        finish(sessions)
    with sessions.begin() as session:
        endpoints.remove(session, endpoint.id, tenant_id=DEFAULT_TENANT)
    with sessions() as session:
        assert count(session, WebhookDispatch) == 2 * PART
        assert not endpoints.list_endpoints(session, ALL).items
        with pytest.raises(NotFoundError):
            endpoints.get(session, endpoint.id, tenant_id=DEFAULT_TENANT)
    finish(sessions)  # told to nobody
    deliver_all(sessions)
    assert not tries(sessions)
    while removed := sweep_deleted(sessions):
        assert removed <= PART
    with sessions() as session:
        assert [count(session, each) for each in (WebhookEndpoint, WebhookDispatch)] == [0, 0]


@pytest.mark.parametrize("limit", [1, 2])
def test_old_events_go_in_bounded_rounds(session: Session, limit: int) -> None:
    for _ in range(3):
        job_in(session, JobState.CANCELLED)
        session.execute(text("DELETE FROM reservations"))
    now = database_now(session)
    assert deletion.prune_events(session, before=now, limit=limit) == limit
    assert len(session.scalars(select(WebhookEvent.id)).all()) == 3 - limit
