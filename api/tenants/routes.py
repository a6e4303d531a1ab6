"""Usage over HTTP: by day and model, and what the tenant holds of its quotas."""

from datetime import UTC, date, datetime
from itertools import groupby
from operator import attrgetter
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from api.http.dependencies import CallerDep, ServicesDep
from api.http.openapi import responses
from api.tenants.replies import QuotaUsageReply, StoredReply, UsageDayReply, UsageReply
from jobs.states import TERMINAL
from jobs.tenants import quotas, stored_bytes, usage
from jobs.tenants.quotas import QuotaUsage
from jobs.tenants.usage import DailyUsage

router = APIRouter(tags=["usage"])


@router.get(
    "/v1/usage",
    summary="Get your usage",
    responses=responses(200, UsageReply, "Usage by day and model", 400, 503),
)
async def get_usage(
    services: ServicesDep,
    caller: CallerDep,
    start: Annotated[date | None, Query(description="First day, UTC; default: 30 days up to `end`.")] = None,
    end: Annotated[date | None, Query(description="Last day, UTC; default: today.")] = None,
) -> UsageReply:
    """Get jobs and tokens by the day on which the jobs ended, including deleted jobs."""
    first, last = usage.period(start, end, today=datetime.now(UTC).date())
    found, held, stored = await services.transact(_read, tenant_id=caller.tenant_id, first=first, last=last)
    limits = caller.limits
    by_day = groupby(found, attrgetter("day", "model"))
    return UsageReply(
        object="list",
        data=[_day(day, model, list(each)) for (day, model), each in by_day],
        enqueued=QuotaUsageReply(
            tokens=held.tokens,
            max_tokens=limits.max_enqueued_tokens,
            jobs=held.jobs,
            max_jobs=limits.max_jobs,
        ),
        stored=StoredReply(bytes=stored, max_bytes=limits.max_stored_bytes or None),
    )


def _read(
    session: Session, *, tenant_id: UUID, first: date, last: date
) -> tuple[list[DailyUsage], QuotaUsage, int]:
    found = usage.read(session, tenant_id, first=first, last=last)
    return found, quotas.current_usage(session, tenant_id), stored_bytes.read(session, tenant_id)


def _day(day: date, model: str, of_states: list[DailyUsage]) -> UsageDayReply:
    num_jobs = {str(state): 0 for state in TERMINAL} | {each.state: each.num_jobs for each in of_states}
    total = usage.total_of(of_states)
    return UsageDayReply.model_validate(
        {
            "object": "usage",
            "date": day,
            "model": model,
            "num_jobs": num_jobs,
            "prompt_tokens": total.prompt_tokens,
            "cached_tokens": total.cached_tokens,
            "completion_tokens": total.completion_tokens,
            "total_tokens": total.total_tokens,
        }
    )
