"""Whether a job fits: once its prompt is counted it is queued, or rejected because no engine can run it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, and_, false, literal_column, or_, select
from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.engines import registry
from jobs.engines.capacity import Capacity, Excess, find_least_excess
from jobs.finishing import JobEnd
from jobs.models import Job, JsonObject
from jobs.states import TRANSITIONS


def settle_count(job: Job, *, num_tokens: int, limits: Sequence[Capacity], now: datetime) -> None:
    """Queue a job whose prompt is counted, or fail it if no engine can ever run it."""
    job.prompt_tokens = num_tokens
    job.reserved_tokens = num_tokens + job.max_tokens
    excess = find_least_excess(limits, prompt_tokens=num_tokens, max_tokens=job.max_tokens)
    if excess is None:
        job.state = TRANSITIONS["prepare"][1].value
    else:
        reject(job, too_long_error(excess), now=now)


def reject(job: Job, error: JsonObject, *, now: datetime) -> None:
    """Fail a job that no engine can ever run."""
    job.state = TRANSITIONS["reject"][1].value
    job.error, job.finalized_at = error, now


def too_long_error(excess: Excess, *, is_least: bool = False) -> JsonObject:
    """Describe why a job can never fit, with the three numbers.

    Args:
        excess: the numbers.
        is_least: counting stopped as soon as the prompt was too long.
    """
    least = "at least " if is_least else ""
    details: JsonObject = {
        "prompt_tokens": excess.prompt_tokens,
        "max_tokens": excess.max_tokens,
        "limit": excess.limit,
        "limit_name": excess.limit_name,
    }
    return {
        "code": "context_length_exceeded",
        "message": (
            f"The prompt has {least}{excess.prompt_tokens} tokens and max_tokens is {excess.max_tokens};"
            f" {excess.limit_name} is {excess.limit}."
        ),
        "details": details | ({"prompt_tokens_at_least": excess.prompt_tokens} if is_least else {}),
    }


def reject_misfits(session: Session, *, limit: int = 1000, only: Sequence[UUID] | None = None) -> list[Job]:
    """Fail queued jobs that no registered engine can run; one may come back smaller.

    Args:
        session: the caller's transaction.
        limit: jobs at most.
        only: of these jobs; None: of all.
    """
    capacities = registry.registered_capacities(session)
    query = misfits(capacities)
    if only is not None:
        query = query.where(Job.id.in_(only))
    misfitting = query.with_only_columns(Job.id, Job.model, Job.prompt_tokens, Job.max_tokens)
    ends = []
    for row in session.execute(misfitting.limit(limit).with_for_update(skip_locked=True)):
        limits = capacities[row.model]
        excess = find_least_excess(limits, prompt_tokens=row.prompt_tokens, max_tokens=row.max_tokens)
        if excess is not None:
            ends.append(JobEnd(job_id=row.id, verb="reject", error=too_long_error(excess)))
    rejected = select(Job).where(Job.id.in_(lifecycle.finish(session, ends))).order_by(Job.id)
    return list(session.scalars(rejected))


def misfits(capacities: Mapping[str, Sequence[Capacity]]) -> Select[UUID]:
    """Select queued jobs that no registered engine can ever run."""
    total = Job.prompt_tokens + Job.max_tokens
    fits_none = [
        and_(
            Job.model == model,
            *(
                or_(
                    total > min(each.max_seq_len, each.max_tokens_in_pool),
                    Job.prompt_tokens > each.max_input_len,
                )
                for each in limits
            ),
        )
        for model, limits in capacities.items()
    ]
    return select(Job.id).where(Job.state == literal_column("'queued'"), or_(false(), *fits_none))
