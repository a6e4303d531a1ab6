"""Requests that are sent twice and must be carried out once: what a key made is remembered with it."""

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
        key: as sent, or one of our own, which has a line feed in it.
        request_sha256: of what the request means; another one under the same key is a conflict.
        valid_for: how long the key is remembered.
        is_first: the caller says that it never sent this before: what was made under the key is not its own.
    """

    key: str
    request_sha256: bytes
    valid_for: timedelta
    is_first: bool = False

    def part(self, name: str) -> "Once":
        """The key of a part of the request, which has its own content."""
        return Once(f"{self.key}\n{name}", self.request_sha256, self.valid_for, self.is_first)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What requests under a key make.

    Attributes:
        subject_type: its name in the table.
        note: the id, or what else must be remembered to find it again.
        find: what was made, from what `note` gave; None: it is gone.
    """

    subject_type: str
    note: Callable[[T], UUID | JsonObject]
    find: Callable[[Session, UUID | JsonObject], T | None]


def run_once(
    session: Session, once: Once, make: Callable[[Session], T], *, tenant_id: UUID, kind: Kind[T]
) -> tuple[T, bool]:
    """What the request made, and whether an earlier one with its key did.

    Whoever comes at the same time with the same key waits until this transaction has ended.

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
    """Nobody else is past this point with the same key; the database's clock."""
    advisory_locks.hold_key(session, f"{tenant_id}\n{key}")
    return database_now(session)


def _remember(
    session: Session,
    once: Once,
    noted: UUID | JsonObject,
    *,
    tenant_id: UUID,
    kind: Kind[T],
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
