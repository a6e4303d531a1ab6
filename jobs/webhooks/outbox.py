"""Append one event per subject and type, in the transaction that made it happen."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, exists, func, literal_column, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs import ids
from jobs.database import database_now
from jobs.ids import uuid7
from jobs.models import Job, JsonObject, Result, Summary, WebhookEndpoint, WebhookEvent
from jobs.models.batch import Batch
from jobs.states import Lane
from jobs.tenants import usage
from jobs.views import job_object
from jobs.webhooks import fanout
from jobs.webhooks.fanout import Destination
from jobs.webhooks.payloads import summary_event
from jobs.webhooks.rules import JOB_STARTED

# Per statement, each with 8 parameters: Postgres takes 65,535 at most.
_MAX_ROWS: Final = 1000
# An event carries no more output than this; a client that wants more reads `result_url`.
MAX_OUTPUT_BYTES: Final = 16 * 1024


def append(session: Session, ended: Sequence[Job]) -> None:
    """Append an event for each of these finished jobs, and queue its deliveries.

    Also records the jobs' usage: every finished job passes here exactly once.
    """
    usage.note(session, ended)
    for start in range(0, len(ended), _MAX_ROWS):
        _append(session, ended[start : start + _MAX_ROWS])


def append_started(session: Session, job: Job) -> None:
    """Append the event of a job that an engine now runs, unless it ran before."""
    endpoints = fanout.endpoints_of(session, [job.tenant_id]).get(job.tenant_id, [])
    kind = JOB_STARTED
    event_id = uuid7()
    row = _row(job, event_id, kind, at=job.started_at, has_content=True)
    new = insert(WebhookEvent).values(row).on_conflict_do_nothing().returning(WebhookEvent.id)
    if session.scalar(new) is not None:
        to = fanout.wanting(endpoints, kind)
        fanout.add(session, fanout.rows_for(job.tenant_id, event_id, to))


def is_start_wanted() -> ColumnElement[bool]:
    """Build the SQL condition that an endpoint wants to know of a job's start."""
    return exists().where(
        WebhookEndpoint.tenant_id == Job.tenant_id,
        WebhookEndpoint.events.contains([JOB_STARTED]),
        WebhookEndpoint.disabled_reason.is_(None),
        Job.batch_id.is_(None),
        Job.summary_id.is_(None),
        Job.lane == literal_column(f"'{Lane.BATCH.value}'"),
    )


def append_batch(session: Session, batch: Batch) -> None:
    """Append the event of a finished batch, in OpenAI's shape."""
    kind = f"batch.{batch.state}"
    to = _destinations(session, batch.tenant_id, kind)
    if batch.webhook_url is not None:
        to.append(fanout.own(batch.tenant_id, batch.webhook_url, secret=batch.webhook_secret))
    data: JsonObject = {"id": ids.batch_id(batch.id)}
    _add_one(session, batch.tenant_id, kind, data, to, batch_id=batch.id)


def append_summary(session: Session, summary: Summary) -> None:
    """Append the event of a finished summary; clients read its text from `result_url`."""
    kind = f"summary.{summary.state}"
    to = _destinations(session, summary.tenant_id, kind)
    if summary.webhook_url is not None:
        to.append(fanout.own(summary.tenant_id, summary.webhook_url, secret=summary.webhook_secret))
    _add_one(session, summary.tenant_id, kind, summary_event(summary), to, summary_id=summary.id)


def append_endpoint(
    session: Session,
    endpoint: WebhookEndpoint,
    kind: str,
    data: JsonObject,
    to: Sequence[Destination] | None = None,
) -> UUID:
    """Append an event about the endpoint, and return the event's id.

    It goes to the destinations `to`; None: to every endpoint that wants this type.
    """
    if to is None:
        to = _destinations(session, endpoint.tenant_id, kind)
    return _add_one(session, endpoint.tenant_id, kind, data, to, endpoint_id=endpoint.id)


def _destinations(session: Session, tenant_id: UUID, kind: str) -> list[Destination]:
    endpoints = fanout.endpoints_of(session, [tenant_id]).get(tenant_id, [])
    return fanout.wanting(endpoints, kind)


def _add_one(
    session: Session, tenant_id: UUID, kind: str, data: JsonObject, to: Sequence[Destination], **subject: UUID
) -> UUID:
    event_id = uuid7()
    body = _body(event_id, kind, database_now(session), data)
    row = {"id": event_id, "tenant_id": tenant_id, "type": kind, "payload": body, **subject}
    session.execute(insert(WebhookEvent).values(row))
    fanout.add(session, fanout.rows_for(tenant_id, event_id, to))
    return event_id


def _append(session: Session, ended: Sequence[Job]) -> None:
    # Lines of a batch and jobs of a tree have no webhook of their own; interactive clients wait anyway.
    alone = {job.tenant_id for job in ended if _is_announced(job)}
    endpoints = fanout.endpoints_of(session, alone)
    readers = {job.id: _readers(job, endpoints.get(job.tenant_id, ())) for job in ended}
    outputs = _outputs(
        session, [each for each, to in readers.items() if any(one.includes_output for one in to)]
    )
    events: list[dict[str, Any]] = []
    dispatches: list[dict[str, Any]] = []
    for job in ended:
        event_id = uuid7()
        has_content = bool(readers[job.id]) or (_is_announced(job) and job.tenant_id in endpoints)
        row = _row(job, event_id, f"job.{job.state}", at=job.finalized_at, has_content=has_content)
        events.append(row | {"output": outputs.get(job.id)})
        dispatches += fanout.rows_for(job.tenant_id, event_id, readers[job.id])
    session.execute(insert(WebhookEvent).values(events))
    fanout.add(session, dispatches)


def _is_announced(job: Job) -> bool:
    return job.batch_id is None and job.summary_id is None and job.lane == Lane.BATCH


def _readers(job: Job, endpoints: Sequence[WebhookEndpoint]) -> list[Destination]:
    to = fanout.wanting(endpoints, f"job.{job.state}") if _is_announced(job) else []
    if job.webhook_url is not None:
        to.append(
            fanout.own(
                job.tenant_id,
                job.webhook_url,
                secret=job.webhook_secret,
                includes_output=job.webhook_includes_output,
            )
        )
    return to


def _outputs(session: Session, job_ids: Sequence[UUID]) -> Mapping[UUID, str]:
    """Read the outputs of these jobs that are small enough to send."""
    if not job_ids:
        return {}
    query = select(Result.job_id, Result.output).where(
        Result.job_id.in_(job_ids), func.octet_length(Result.output) <= MAX_OUTPUT_BYTES
    )
    return {row.job_id: row.output for row in session.execute(query)}


def _row(job: Job, event_id: UUID, kind: str, *, at: datetime | None, has_content: bool) -> dict[str, Any]:
    used = (job.prompt_tokens or 0) + job.completion_tokens
    data: JsonObject = {
        **job_object(job),
        "usage": {
            "prompt_tokens": job.prompt_tokens,
            "completion_tokens": job.completion_tokens,
            "total_tokens": used,
        },
        "result_url": f"/v1/jobs/{ids.job_id(job.id)}/result",
    }
    return {
        "id": event_id,
        "tenant_id": job.tenant_id,
        "job_id": job.id,
        "type": kind,
        "payload": _body(event_id, kind, at, data) if has_content else None,
    }


def _body(event_id: UUID, kind: str, at: datetime | None, data: JsonObject) -> JsonObject:
    return {
        "id": ids.event_id(event_id),
        "object": "event",
        "created_at": int(at.timestamp()) if at else None,
        "type": kind,
        "data": data,
    }
