"""What happened, told once: a row per subject and terminal type, in the transaction that made it so."""

from collections.abc import Sequence

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs import ids, usage
from jobs.batch_models import Batch
from jobs.database import database_now
from jobs.ids import uuid7
from jobs.models import Job, WebhookEvent
from jobs.views import job_object

# Per statement, each with 7 parameters: Postgres takes 65,535 at most.
_MAX_ROWS = 1000


def append(session: Session, ended: Sequence[Job]) -> None:
    """Each of these jobs, in a terminal state now, has its event; pending delivery if it named a URL.

    It is on its tenant's record too: this is the one place that every job passes once, when it ends.
    """
    usage.note(session, ended)
    for start in range(0, len(ended), _MAX_ROWS):
        rows = [_row(job) for job in ended[start : start + _MAX_ROWS]]
        session.execute(insert(WebhookEvent).values(rows))


def append_batch(session: Session, batch: Batch) -> None:
    """The batch, in a terminal state now, has its event."""
    event_id = uuid7()
    kind = f"batch.{batch.state}"
    now = database_now(session)
    row = {
        "id": event_id,
        "tenant_id": batch.tenant_id,
        "batch_id": batch.id,
        "type": kind,
        "state": "none",
        "payload": {
            "id": ids.event_id(event_id),
            "object": "event",
            "created_at": int(now.timestamp()),
            "type": kind,
            "data": {"id": ids.batch_id(batch.id)},
        },
    }
    session.execute(insert(WebhookEvent).values(row))


def _row(job: Job) -> dict[str, object]:
    event_id = uuid7()
    kind = f"job.{job.state}"
    asked = job.webhook_url is not None
    return {
        "id": event_id,
        "tenant_id": job.tenant_id,
        "job_id": job.id,
        "type": kind,
        "url": job.webhook_url,
        "state": "pending" if asked else "none",
        "next_delivery_at": func.clock_timestamp() if asked else None,
        "payload": {
            "id": ids.event_id(event_id),
            "object": "event",
            "type": kind,
            "created_at": int(job.finalized_at.timestamp()) if job.finalized_at else None,
            "data": job_object(job),
        }
        if asked
        else None,
    }
