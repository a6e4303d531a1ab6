"""Idempotency keys: a repeated request returns what the first one created."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database import advisory_locks, database_now
from jobs.errors import AlreadyDeliveredError, IdempotencyConflictError
from jobs.models import JsonObject
from jobs.models.tenant import IdempotencyKey, Tenant

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IdempotencyGuard:
    """A caller's idempotency key, and the request that it is for.

    Attributes:
        key: as the caller sent it, or one of our own, which contains a line feed.
        request_sha256: hash of what the request means; another hash under the same key is a conflict.
        valid_for: how long the key is remembered.
        is_first_try: the SDK's retry counter is 0: this is a new request, even if an equal one was made a
            moment ago.
    """

    key: str
    request_sha256: bytes
    valid_for: timedelta
    is_first_try: bool = False

    def for_slice(self, name: str) -> "IdempotencyGuard":
        """Make the key of one slice of the request; each slice is stored in its own transaction."""
        return IdempotencyGuard(f"{self.key}\n{name}", self.request_sha256, self.valid_for, self.is_first_try)


@dataclass(frozen=True, slots=True)
class RequestKind(Generic[T]):
    """One kind of things that requests under a key make.

    Attributes:
        subject_type: its name in the table.
        record: returns the id of what was made, or whatever else finds it again.
        find: finds what was made by what `record` returned; None if it is deleted.
    """

    subject_type: str
    record: Callable[[T], UUID | JsonObject]
    find: Callable[[Session, UUID | JsonObject], T | None]


def run_idempotently(
    session: Session,
    guard: IdempotencyGuard | None,
    make: Callable[[Session], T],
    *,
    tenant_id: UUID,
    kind: RequestKind[T],
) -> tuple[T, bool]:
    """Run the request unless an earlier one with its key did; return what was made.

    A request that comes at the same time with the same key waits until this transaction ends.

    Args:
        session: the caller's transaction.
        guard: of the request; None: it has no key, so it is always run.
        make: runs it.
        tenant_id: of the caller.
        kind: of what it makes.

    Returns:
        What was made, and True if an earlier request made it.

    Raises:
        IdempotencyConflictError: the key was used for another request.
        AlreadyDeliveredError: what it made is gone, and the tenant has no retention.
    """
    if guard is None:
        return make(session), False
    now = _lock(session, tenant_id, guard.key)
    earlier = session.get(IdempotencyKey, (tenant_id, guard.key), populate_existing=True)
    if earlier is not None and earlier.created_at >= now - guard.valid_for and not guard.is_first_try:
        if (earlier.subject_type, earlier.request_sha256) != (kind.subject_type, guard.request_sha256):
            raise IdempotencyConflictError(param="Idempotency-Key")
        recorded = earlier.subject_id or earlier.answer
        found = kind.find(session, recorded) if recorded is not None else None
        if found is not None:
            return found, True
        if _keeps_nothing(session, tenant_id):
            raise AlreadyDeliveredError(param="Idempotency-Key")
    made = make(session)
    _remember(session, guard, kind.record(made), tenant_id=tenant_id, kind=kind, now=now)
    return made, False


def _keeps_nothing(session: Session, tenant_id: UUID) -> bool:
    """Return True for a tenant without retention: what is gone was most likely delivered."""
    query = select(Tenant.zero_retention_seconds).where(Tenant.id == tenant_id)
    return session.scalar(query) is not None


def _lock(session: Session, tenant_id: UUID, key: str) -> datetime:
    """Lock the key until this transaction ends; return the database's clock."""
    advisory_locks.hold_key(session, f"{tenant_id}\n{key}")
    return database_now(session)


def _remember(
    session: Session,
    guard: IdempotencyGuard,
    recorded: UUID | JsonObject,
    *,
    tenant_id: UUID,
    kind: RequestKind[T],
    now: datetime,
) -> None:
    values = {
        "request_sha256": guard.request_sha256,
        "subject_type": kind.subject_type,
        "subject_id": recorded if isinstance(recorded, UUID) else None,
        "answer": None if isinstance(recorded, UUID) else recorded,
        "created_at": now,
    }
    session.execute(
        insert(IdempotencyKey)
        .values(tenant_id=tenant_id, key=guard.key, **values)
        .on_conflict_do_update(index_elements=["tenant_id", "key"], set_=values)
    )
