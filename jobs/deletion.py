"""How jobs leave: deleted by their owner, or pruned at the end of their retention."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, delete, exists, or_, select, tuple_
from sqlalchemy.orm import Session

from jobs import audit, ids
from jobs.audit import Action
from jobs.database.rows import require
from jobs.engines import tensor_rows
from jobs.errors import ConflictError
from jobs.models import IdempotencyKey, Job, WebhookDispatch, WebhookEvent
from jobs.prompts import store
from jobs.responses import rows as responses
from jobs.states import TERMINAL


def remove(session: Session, job_id: UUID, *, tenant_id: UUID) -> bool:
    """Delete a finished job at its owner's request; see `forget`."""
    is_removed = forget(session, job_id, tenant_id=tenant_id)
    if is_removed:
        audit.note(session, Action.JOB_DELETE, ids.job_id(job_id), tenant_id=tenant_id)
    return is_removed


def forget(session: Session, job_id: UUID, *, tenant_id: UUID) -> bool:
    """Delete a finished job with its result and its texts.

    Returns:
        False if it has not finished.

    Raises:
        NotFoundError: the tenant has no such job.
        ConflictError: it is part of a summary.
    """
    query = select(Job).where(Job.id == job_id, Job.tenant_id == tenant_id)
    job = require(session, query.with_for_update(), kind="job")
    if job.summary_id is not None:
        raise ConflictError("The job belongs to a summary; delete the summary instead.")
    if job.state not in TERMINAL or _is_awaited(job):
        return False
    remove_all(session, [job])
    return True


def ended_before(before: datetime) -> Select[UUID]:
    """Select jobs that ended before this moment, oldest first, except those of trees.

    Jobs of trees are deleted with their summaries.
    """
    return (
        select(Job.id)
        .where(Job.finalized_at.is_not(None), Job.finalized_at < before)
        .where(or_(Job.batch_id.is_(None), Job.is_reported), Job.summary_id.is_(None))
        .order_by(Job.finalized_at)
    )


def prune_jobs(
    session: Session, *, before: datetime, limit: int = 500, only: Sequence[UUID] | None = None
) -> int:
    """Delete jobs that ended before this moment, with their texts.

    Args:
        session: the caller's transaction.
        before: this moment.
        limit: jobs at most.
        only: of these jobs; None: of all.

    Returns:
        How many it deleted.
    """
    found = ended_before(before) if only is None else ended_before(before).where(Job.id.in_(only))
    old = session.scalars(found.limit(limit).with_for_update(skip_locked=True)).all()
    return remove_all(session, session.scalars(select(Job).where(Job.id.in_(old))).all())


def prune_events(session: Session, *, before: datetime, limit: int = 5000) -> int:
    """Delete events older than this moment that have no delivery left to make.

    Returns:
        How many it deleted.
    """
    is_open = exists().where(
        WebhookDispatch.event_id == WebhookEvent.id, WebhookDispatch.next_attempt_at.is_not(None)
    )
    old = (
        select(WebhookEvent.id)
        .where(WebhookEvent.created_at < before, WebhookEvent.state != "pending", ~is_open)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    doomed = session.scalars(old).all()
    session.execute(delete(WebhookEvent).where(WebhookEvent.id.in_(doomed)))
    return len(doomed)


def prune_idempotency_keys(session: Session, *, before: datetime, limit: int = 5000) -> int:
    """Delete idempotency keys older than this moment.

    Returns:
        How many it deleted.
    """
    old = (
        select(IdempotencyKey.tenant_id, IdempotencyKey.key)
        .where(IdempotencyKey.created_at < before)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    doomed = [(tenant_id, key) for tenant_id, key in session.execute(old)]
    session.execute(
        delete(IdempotencyKey).where(tuple_(IdempotencyKey.tenant_id, IdempotencyKey.key).in_(doomed))
    )
    return len(doomed)


def _is_awaited(job: Job) -> bool:
    """Return True if its batch has not recorded its end, and could not end without."""
    return job.batch_id is not None and not job.is_reported


def remove_all(session: Session, jobs: Iterable[Job]) -> int:
    """Delete these jobs, which the caller has locked, and texts that no other uses; count the jobs."""
    doomed = {job.id: (job.text_id, job.guide_id) for job in jobs}
    texts = responses.text_ids_of(session, doomed) | tensor_rows.text_ids_of(session, doomed)
    tensor_rows.remove_files_of(session, doomed)
    session.execute(delete(Job).where(Job.id.in_(doomed)))
    texts |= {text_id for both in doomed.values() for text_id in both if text_id is not None}
    store.drop_unused(session, sorted(texts))
    return len(doomed)
