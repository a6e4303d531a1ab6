"""Idempotency keys: a repeated request returns what the first one created."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar
from uuid import UUID

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database import advisory_locks, database_now
from jobs.errors import IdempotencyConflictError
from jobs.models import JsonObject
from jobs.models.tenant import IdempotencyKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Once:
    """A caller's idempotency key.

    Attributes:
        key: as the caller sent it, or one of our own, which contains a line feed.
        request_sha256: hash of what the request means; another hash under the same key is a conflict.
        valid_for: how long the key is remembered.
        is_first: the SDK's retry counter is 0: this is a new request, even if an equal one was made a moment
            ago.
    """

    key: str
    request_sha256: bytes
    valid_for: timedelta
    is_first: bool = False

    def part(self, name: str) -> "Once":
        """Make the key of one slice of the request; each slice is stored in its own transaction."""
        return Once(f"{self.key}\n{name}", self.request_sha256, self.valid_for, self.is_first)


@dataclass(frozen=True, slots=True)
class RequestKind(Generic[T]):
    """One kind of things that requests under a key make.

    Attributes:
        subject_type: its name in the table.
        note: returns the id of what was made, or whatever else finds it again.
        find: finds what was made by what `note` returned; None if it is deleted.
    """

    subject_type: str
    note: Callable[[T], UUID | JsonObject]
    find: Callable[[Session, UUID | JsonObject], T | None]


def run_once(
    session: Session, once: Once, make: Callable[[Session], T], *, tenant_id: UUID, kind: RequestKind[T]
) -> tuple[T, bool]:
    """Run the request unless an earlier one with its key did; return what was made.

    A request that comes at the same time with the same key waits until this transaction ends.

    Returns:
        What was made, and True if an earlier request made it.

    Raises:
        IdempotencyConflictError: the key was used for another request.
    """
    now = _lock(session, tenant_id, once.key)
    earlier = session.get(IdempotencyKey, (tenant_id, once.key), populate_existing=True)
    if earlier is not None and earlier.created_at >= now - once.valid_for and not once.is_first:
        if (earlier.subject_type, earlier.request_sha256) != (kind.subject_type, once.request_sha256):
            raise IdempotencyConflictError(param="Idempotency-Key")
        noted = earlier.subject_id or earlier.answer
        found = kind.find(session, noted) if noted is not None else None
        if found is not None:
            return found, True
    made = make(session)
    _remember(session, once, kind.note(made), tenant_id=tenant_id, kind=kind, now=now)
    return made, False


def _lock(session: Session, tenant_id: UUID, key: str) -> datetime:
    """Lock the key until this transaction ends; return the database's clock."""
    advisory_locks.hold_key(session, f"{tenant_id}\n{key}")
    return database_now(session)


def _remember(
    session: Session,
    once: Once,
    noted: UUID | JsonObject,
    *,
    tenant_id: UUID,
    kind: RequestKind[T],
    now: datetime,
) -> None:
    values = {
        "request_sha256": once.request_sha256,
        "subject_type": kind.subject_type,
        "subject_id": noted if isinstance(noted, UUID) else None,
        "answer": None if isinstance(noted, UUID) else noted,
        "created_at": now,
    }
    session.execute(
        insert(IdempotencyKey)
        .values(tenant_id=tenant_id, key=once.key, **values)
        .on_conflict_do_update(index_elements=["tenant_id", "key"], set_=values)
    )
