"""Filtered lists: a page reads about a page's worth of rows, however long a tenant's history is."""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, inspect, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import documents, files, queries, summaries
from jobs.database import database_now
from jobs.database.paging import Page, Range
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, Base, Job
from jobs.models.document import Document
from jobs.models.file import File
from jobs.models.summary import Summary
from jobs.models.webhook import WebhookEvent
from jobs.models.webhook_delivery import WebhookDelivery
from jobs.queries import JobFilter
from jobs.states import JobState
from jobs.states.file import FileState
from jobs.summaries import SummaryFilter
from jobs.webhooks import delivery_log
from jobs.webhooks.delivery_log import DeliveryFilter
from summary_support import create, failed_document
from support import job_in

HISTORY = 2000
NUM_RARE = 5
LIMIT = 20
# Rows of a page: once to choose them and once to show them, one more to see whether others follow, and the
# row from which the others were copied.
MOST = 2 * (LIMIT + 1) + NUM_RARE + 1
PAGE = Range(DEFAULT_TENANT, None, LIMIT)
ENDPOINT = UUID(int=1)
List = Callable[[Session], Page[Any]]


def copy(session: Session, row: Base, count: int, **changes: object) -> None:
    """Add so many younger rows like this one but for the changes."""
    session.flush()
    values = {each.key: getattr(row, each.key) for each in inspect(type(row)).column_attrs} | changes
    rows = [values | {"id": uuid7()} for _ in range(count)]
    if isinstance(row, Document):  # no two have the same content
        rows = [each | {"sha256": sha256(each["id"].bytes).digest()} for each in rows]
    session.execute(insert(type(row)), rows)


def jobs(session: Session, *, common: JobState = JobState.CANCELLED, **rare: object) -> None:
    job = job_in(session, common)
    copy(session, job, NUM_RARE, **rare)
    copy(session, job, HISTORY)


def some_documents(session: Session) -> None:
    document = failed_document(session)
    copy(session, document, NUM_RARE)
    waiting = {"state": "extracting", "error": None, "finalized_at": None, "file_id": uuid7()}
    copy(session, document, HISTORY, **waiting)


def some_summaries(session: Session) -> None:
    (summary,) = create(session, failed_document(session))
    copy(session, summary, HISTORY)
    copy(session, summary, NUM_RARE, state="cancelled", finalized_at=database_now(session))
    copy(session, summary, HISTORY)


def some_files(session: Session) -> None:
    file = files.create(
        session, tenant_id=DEFAULT_TENANT, purpose="batch", filename="a", state=FileState.COMPLETE
    )
    copy(session, file, NUM_RARE)
    copy(session, file, HISTORY, purpose="batch_output")


def deliveries(session: Session, **rare: object) -> None:
    event = WebhookEvent(tenant_id=DEFAULT_TENANT, job_id=uuid7(), type="job.completed")
    session.add(event)
    session.flush()
    told = WebhookDelivery(
        tenant_id=DEFAULT_TENANT, event_id=event.id, attempt=1, outcome="delivered", latency_ms=1
    )
    session.add(told)
    copy(session, told, NUM_RARE, **rare)
    copy(session, told, HISTORY)


def of_jobs(**wanted: Any) -> List:  # noqa: ANN401  # of each field's type
    return partial(queries.list_jobs, which=JobFilter(**wanted), wanted=PAGE)


def of_deliveries(**wanted: Any) -> List:  # noqa: ANN401  # of each field's type
    return partial(delivery_log.list_deliveries, which=DeliveryFilter(**wanted), wanted=PAGE)


LISTS: dict[str, tuple[Callable[[Session], None], List, type[Base]]] = {
    "expired jobs": (partial(jobs, state="expired"), of_jobs(state="expired"), Job),
    "jobs of a task": (partial(jobs, task="summary_reduce"), of_jobs(task="summary_reduce"), Job),
    "expired jobs of a task": (
        partial(jobs, task="summary_map", state="expired"),
        of_jobs(task="summary_map", state="expired"),
        Job,
    ),
    "blocked jobs": (
        partial(jobs, common=JobState.QUEUED, state="blocked"),
        of_jobs(state="blocked"),
        Job,
    ),
    "documents": (
        some_documents,
        partial(documents.list_documents, wanted=PAGE, state="failed"),
        Document,
    ),
    "summaries": (
        some_summaries,
        partial(summaries.list_summaries, which=SummaryFilter(state="cancelled"), wanted=PAGE),
        Summary,
    ),
    "files": (some_files, partial(files.list_files, wanted=PAGE, purpose="batch"), File),
    "failed deliveries": (
        partial(deliveries, outcome="status"),
        of_deliveries(is_delivered=False),
        WebhookDelivery,
    ),
    "deliveries to an endpoint": (
        partial(deliveries, endpoint_id=ENDPOINT),
        of_deliveries(endpoint_id=ENDPOINT),
        WebhookDelivery,
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_filtered_list_reads_a_page_s_worth_of_rows(sessions: sessionmaker[Session], name: str) -> None:
    fill, read, table = LISTS[name]
    with sessions.begin() as session:
        fill(session)
    with sessions.begin() as session:
        session.execute(text(f"ANALYZE {table.__tablename__}"))
    with sessions() as session:
        before = num_read(session, table)
        page = read(session)
        assert NUM_RARE <= len(page.items) <= NUM_RARE + 1
        assert not page.has_more
        assert num_read(session, table) - before <= MOST


def test_pages_of_a_task_s_jobs_follow_one_another_through_all_states(
    sessions: sessionmaker[Session],
) -> None:
    with sessions.begin() as session:
        waits = job_in(session, JobState.QUEUED)
        session.execute(text("UPDATE jobs SET rank = -1"))  # the next one is claimed first
        ended = job_in(session, JobState.CANCELLED)
        for state in ("cancelled", "expired") * 6:
            copy(session, ended, 1, task="summary_map", state=state)
            copy(session, waits, 1, task="summary_map")
    with sessions() as session:
        seen: list[Job] = []
        while True:
            after = seen[-1].id if seen else None
            page = queries.list_jobs(
                session, JobFilter(task="summary_map"), Range(DEFAULT_TENANT, after, limit=7)
            )
            seen += page.items
            if not page.has_more:
                break
        assert len(seen) == 24
        assert [each.id for each in seen] == sorted((each.id for each in seen), reverse=True)


def num_read(session: Session, table: type[Base]) -> int:
    """The rows of the table that this transaction has read so far."""
    query = text("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = :name")
    return session.scalar(query, {"name": table.__tablename__}) or 0
