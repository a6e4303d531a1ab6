"""The first page: what runs and waits now, how long the oldest job has waited, and what failed lately."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from fastapi import Request
from sqlalchemy import ColumnElement, Select, and_, case, func, literal_column, select, true
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.page import render
from api.console.reading import read_for, tenant_of
from api.console.session import ViewerDep
from api.console.subjects.kinds import SUBJECTS, SubjectPages
from api.engines.replies import engine_object
from api.http.dependencies import ServicesDep
from jobs import ids, queries
from jobs.database import database_now
from jobs.models import Job, Summary, Tenant
from jobs.queries import EngineUsage
from jobs.states.summary import TERMINAL as SUMMARY_ENDED
from jobs.states.summary import SummaryState

router = page_router()
_UNFINISHED: Final = ("running", "queued", "preparing", "blocked")
# Named, so that an index finds those of a tenant; another one has those of all.
_OPEN: Final = sorted(set(SummaryState) - SUMMARY_ENDED)
_FAILED: Final[ColumnElement[str]] = literal_column("'failed'")
_RECENT: Final = timedelta(hours=1)
# Rows that the count of failures looks at, of all tenants and of one: some 20 ms of the database's time.
_WINDOW: Final = 10_000
_OWN_WINDOW: Final = 2_000


@dataclass(frozen=True, slots=True)
class OldestJob:
    """The job that has waited longest in the queue."""

    id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RecentFailures:
    """Jobs that failed in the last hour.

    Attributes:
        by_code: most frequent first.
        is_cut: older rows than the window were not looked at.
    """

    by_code: Sequence[tuple[str, int]]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class OverviewFigures:
    """What the page shows.

    Attributes:
        counts: unfinished jobs by state.
        oldest: None if nothing is queued.
        subjects: unfinished summaries, answers and extractions: the address of their pages, their number.
        engines: for operators.
    """

    now: datetime
    counts: Mapping[str, int]
    oldest: OldestJob | None
    subjects: Sequence[tuple[SubjectPages, int]]
    failures: RecentFailures
    engines: Sequence[EngineUsage]


@router.get("/")
async def show_overview(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show what the viewer's tenant has in the queue, or for operators what all have, and the engines."""
    found = await read_for(viewer, services, partial(read_figures, tenant_id=tenant_of(viewer)))
    engines = [(each, engine_object(each)) for each in found.engines]
    waited = None if found.oldest is None else found.now - found.oldest.created_at
    return render(request, "overview.html", title="Overview", found=found, engines=engines, waited=waited)


def read_figures(session: Session, *, tenant_id: UUID | None) -> OverviewFigures:
    """Read the figures of a tenant, or of all with the engines."""
    now = database_now(session)
    return OverviewFigures(
        now=now,
        counts=count_unfinished(session, tenant_id=tenant_id),
        oldest=find_oldest(session, tenant_id=tenant_id),
        subjects=count_subjects(session, tenant_id=tenant_id),
        failures=count_failures(session, tenant_id=tenant_id, since=now - _RECENT),
        engines=queries.engine_usages(session) if tenant_id is None else [],
    )


def count_unfinished(session: Session, *, tenant_id: UUID | None) -> dict[str, int]:
    """Count the jobs of a tenant, or of all, in each unfinished state."""
    mine = [] if tenant_id is None else [Job.tenant_id == tenant_id]
    counts = {}
    for state in _UNFINISHED:
        # Literal, so that the planner uses the partial indexes.
        query = select(func.count()).select_from(Job).where(Job.state == literal_column(f"'{state}'"), *mine)
        counts[state] = session.scalar(query) or 0
    return counts


def count_subjects(session: Session, *, tenant_id: UUID | None) -> list[tuple[SubjectPages, int]]:
    """Count the unfinished summaries, answers and extractions of a tenant, or of all."""
    mine = [] if tenant_id is None else [Summary.tenant_id == tenant_id]
    query = select(Summary.purpose, func.count()).where(
        Summary.finalized_at.is_(None), Summary.state.in_(_OPEN), *mine
    )
    counts = dict(session.execute(query.group_by(Summary.purpose)).tuples().all())
    return [(pages, counts[purpose]) for purpose, pages in SUBJECTS.items() if counts.get(purpose)]


def find_oldest(session: Session, *, tenant_id: UUID | None) -> OldestJob | None:
    """Find the queued job that was submitted first; ids sort by age, so an index has each tenant's."""
    first = (
        select(Job.id, Job.created_at)
        .where(
            Job.tenant_id == Tenant.id, Job.finalized_at.is_(None), Job.state == literal_column("'queued'")
        )
        .order_by(Job.id)
        .limit(1)
        .lateral()
    )
    query = select(first.c.id, first.c.created_at).select_from(Tenant).join(first, true())
    if tenant_id is not None:
        query = query.where(Tenant.id == tenant_id)
    row = session.execute(query.order_by(first.c.id).limit(1)).one_or_none()
    return None if row is None else OldestJob(ids.job_id(row.id), row.created_at)


def count_failures(
    session: Session, *, tenant_id: UUID | None, since: datetime, window: int | None = None
) -> RecentFailures:
    """Count the failures since then by their code, among the newest `window` rows; None: as many as is quick.

    Those are a tenant's failed jobs by submission, or for all tenants what ended last.
    """
    columns = (Job.state, Job.error["code"].astext.label("code"), Job.finalized_at)
    newest: Select[Any] = select(*columns)
    if tenant_id is None:
        limit = window or _WINDOW
        newest = newest.where(Job.finalized_at >= since).order_by(Job.finalized_at.desc()).limit(limit)
    else:
        limit = window or _OWN_WINDOW
        mine = (Job.tenant_id == tenant_id, Job.finalized_at.is_not(None), Job.state == _FAILED)
        # Ids first, from an index alone: under row-level security the planner expects few rows, and would
        # read and sort all that ever failed.
        ids_ = (
            select(Job.id).where(*mine).order_by(Job.id.desc()).limit(limit).cte().prefix_with("MATERIALIZED")
        )
        newest = newest.join(ids_, ids_.c.id == Job.id).where(Job.tenant_id == tenant_id)
    seen = newest.subquery()
    is_recent_failure = and_(seen.c.state == _FAILED, seen.c.finalized_at >= since)
    code = case((is_recent_failure, seen.c.code))  # null: looked at, but not counted
    rows = session.execute(select(code, func.count()).group_by(code)).all()
    num_seen = sum(count for _, count in rows)
    counted = [(str(each), int(count)) for each, count in rows if each is not None]
    counted.sort(key=lambda each: (-each[1], each[0]))
    return RecentFailures(counted, is_cut=num_seen == limit)
