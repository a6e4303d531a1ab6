"""Usage by day and model: a table, a curve of its tokens, and for operators who used most."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from itertools import groupby
from typing import Final

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats
from api.console.error_pages import page_router
from api.console.page import render
from api.console.reading import read_for
from api.console.session import ViewerDep
from api.console.usage.query import UsageQuery, parse_query
from api.http.dependencies import ServicesDep
from jobs import tenants
from jobs.states import TERMINAL, JobState
from jobs.tenants import usage
from jobs.tenants.usage import DailyUsage, UsageTotal

router = page_router()

PAGE: Final = "/console/usage"
# In which a job may end, in the order of the columns.
ENDS: Final = tuple(str(each) for each in JobState if each in TERMINAL)
_MOST_TENANTS: Final = 20


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A day's jobs of one model.

    Attributes:
        num_jobs: by their final state.
    """

    day: date
    model: str
    num_jobs: dict[str, int]
    total: UsageTotal


@dataclass(frozen=True, slots=True)
class UsagePage:
    """What the page shows.

    Attributes:
        total: of all rows.
        tenants: who used most, with their names; none where one tenant's usage is shown.
    """

    rows: Sequence[UsageRow]
    total: UsageTotal
    tenants: Sequence[tuple[str, UsageTotal]]


@router.get("/usage")
async def show_usage(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show the usage of a range of days, newest first."""
    query = await parse_query(request.query_params, services, viewer)
    found = await read_for(viewer, services, partial(read_page, query=query))
    return render(
        request,
        "usage.html",
        title="Usage",
        found=found,
        total=found.total,
        fields=query.fields,
        states=ENDS,
        curve=json.dumps(curve_of(found.rows, query)),
        address=PAGE,
        download_address=f"{PAGE}.csv" + formats.query(query.fields),
    )


def read_page(session: Session, *, query: UsageQuery) -> UsagePage:
    """Read the usage that the query asks for."""
    found = usage.read(session, query.tenant_id, first=query.first, last=query.last)
    rows = [make_row(day, model, list(each)) for (day, model), each in groupby(found, _day_and_model)]
    total = usage.total_of(found)
    if query.tenant_id is not None:
        return UsagePage(rows, total, [])
    most = usage.read_totals(session, first=query.first, last=query.last, limit=_MOST_TENANTS)
    names = tenants.read_names(session, most.keys())
    return UsagePage(rows, total, [(names[tenant_id], total) for tenant_id, total in most.items()])


def make_row(day: date, model: str, of_states: Sequence[DailyUsage]) -> UsageRow:
    """Sum the states of a day's jobs of one model."""
    num_jobs = dict.fromkeys(ENDS, 0) | {each.state: each.num_jobs for each in of_states}
    return UsageRow(day, model, num_jobs, usage.total_of(of_states))


def curve_of(rows: Sequence[UsageRow], query: UsageQuery) -> dict[str, object]:
    """Make the points of the curve: prompt and output tokens of each day, those without any included."""
    days = {each: [0, 0] for each in _days(query.first, query.last)}
    for row in rows:
        days[row.day][0] += row.total.prompt_tokens
        days[row.day][1] += row.total.completion_tokens
    return {
        "x": [int(datetime.combine(each, time(), UTC).timestamp()) for each in days],
        "series": [
            {"label": "Prompt tokens", "values": [each[0] for each in days.values()]},
            {"label": "Output tokens", "values": [each[1] for each in days.values()]},
        ],
    }


def _days(first: date, last: date) -> Sequence[date]:
    return [first + timedelta(days=each) for each in range((last - first).days + 1)]


def _day_and_model(each: DailyUsage) -> tuple[date, str]:
    return each.day, each.model
