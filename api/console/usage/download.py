"""Usage as CSV: a line for each day, tenant and model."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from itertools import groupby
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.reading import read_for
from api.console.session import ViewerDep
from api.console.usage.query import UsageQuery, parse_query
from api.console.usage.usage import ENDS, make_row
from api.http.dependencies import ServicesDep
from jobs import tenants
from jobs.tenants import usage
from jobs.tenants.usage import DailyUsage
from longbatch.tables.cells import inert

router = page_router()

_TOKENS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "total_tokens")
_COLUMNS: Final = ("date", "tenant", "model", *(f"{each}_jobs" for each in ENDS), *_TOKENS)
Found = Sequence[tuple[UUID, DailyUsage]]


@router.get("/usage.csv")
async def download_usage(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Send the usage of the page's range; operators get a line for each tenant."""
    query = await parse_query(request.query_params, services, viewer)
    found, names = await read_for(viewer, services, partial(_read, query=query))
    text = await services.compute(100 * len(found), write, found, names)
    name = f"usage-{query.first}-{query.last}.csv"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=disposition)


def write(found: Found, names: Mapping[UUID, str]) -> str:
    """Write the lines, with their header."""
    file = io.StringIO()
    lines = csv.writer(file)
    lines.writerow(_COLUMNS)
    for (day, tenant_id, model), group in groupby(found, _key):
        row = make_row(day, model, [each for _, each in group])
        tokens = [getattr(row.total, name) for name in _TOKENS]
        lines.writerow([day, names[tenant_id], inert(model), *row.num_jobs.values(), *tokens])
    return file.getvalue()


def _key(found: tuple[UUID, DailyUsage]) -> tuple[date, UUID, str]:
    tenant_id, each = found
    return each.day, tenant_id, each.model


def _read(session: Session, *, query: UsageQuery) -> tuple[Found, Mapping[UUID, str]]:
    found = usage.read_each(session, query.tenant_id, first=query.first, last=query.last)
    return found, tenants.read_names(session, {tenant_id for tenant_id, _ in found})
