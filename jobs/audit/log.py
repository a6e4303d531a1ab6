"""The log itself: write an entry, read a part, prune what is past its retention."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, delete, select, text
from sqlalchemy.orm import Session

from jobs.audit.actions import Action
from jobs.audit.actors import actor_of
from jobs.database import paging
from jobs.database.paging import FoundRows, Page, Range, SearchRange
from jobs.database.rows import matches
from jobs.ids import first_uuid7, uuid7
from jobs.models import AuditEntry

Detail = str | int | float | Sequence[str] | None
# Names and reasons are bounded where they come from; this holds whatever comes.
_MAX_CHARACTERS: Final = 300
# Of a list, and of each: a tenant may be given a thousand adapters, and the table takes 8 KiB.
_MAX_ELEMENTS: Final = 40
_MAX_ELEMENT: Final = 130
# The trigger of the table lets entries go in such a transaction alone.
_SWEEP: Final = text("SELECT set_config('app.audit_sweep', 'on', true)")


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to list; None leaves a field open."""

    action: Action | None = None
    object_id: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the filter as SQL conditions."""
        return matches((AuditEntry.action, self.action), (AuditEntry.object_id, self.object_id))


def note(
    session: Session, action: Action, object_id: str | None, *, tenant_id: UUID | None, **details: Detail
) -> None:
    """Write an entry in the transaction of the change, if a caller or an operator makes it.

    Args:
        session: the transaction; its actor is who does it.
        action: what is done.
        object_id: to what, as callers know it.
        tenant_id: whose log has it; None: the operators' alone.
        details: facts about the change; never a secret, a prompt, or a URL, which may hold one.
    """
    actor = actor_of(session)
    if actor is None:
        return
    session.add(
        AuditEntry(
            id=uuid7(),
            tenant_id=tenant_id,
            action=action.value,
            object_id=None if object_id is None else object_id[:_MAX_CHARACTERS],
            actor_kind=actor.kind.value,
            actor_id=actor.id,
            actor_name=actor.name,
            actor_tenant_id=actor.tenant_id,
            via=actor.via.value,
            request_id=actor.request_id,
            address=actor.address,
            details={name: _bounded(value) for name, value in details.items()},
        )
    )


def list_entries(
    session: Session, which: AuditFilter, wanted: Range, *, is_across: bool = False
) -> Page[AuditEntry]:
    """List the entries that match: the tenant's, or those of all and of none.

    Raises:
        InvalidRequestError: the page starts after an entry that is not in the list.
    """
    query = select(AuditEntry).where(*which.conditions())
    if is_across:
        return paging.read_ids(
            session, query, AuditEntry.id, after=wanted.after, limit=wanted.limit, kind="audit entry"
        )
    query = query.where(AuditEntry.tenant_id == wanted.tenant_id)
    return paging.read(session, query, (AuditEntry.id, AuditEntry.tenant_id), wanted, kind="audit entry")


def search(session: Session, which: AuditFilter, wanted: SearchRange) -> FoundRows[AuditEntry]:
    """Search the newest entries for those that match."""
    query = select(AuditEntry).where(*which.conditions())
    of_tenant = matches((AuditEntry.tenant_id, wanted.tenant_id))
    has_index = which.object_id is not None
    return paging.search(session, query, AuditEntry.id, wanted, among=of_tenant, has_index=has_index)


def let_go(session: Session) -> None:
    """Let the transaction delete entries: at the end of their retention, or of their tenant."""
    session.execute(_SWEEP)


def prune(session: Session, *, before: datetime, limit: int = 5000) -> int:
    """Delete entries that were written before this moment. Returns how many."""
    let_go(session)
    old = (
        select(AuditEntry.id)
        .where(AuditEntry.id < first_uuid7(before))
        .order_by(AuditEntry.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    doomed = session.scalars(old).all()
    session.execute(delete(AuditEntry).where(AuditEntry.id.in_(doomed)))
    return len(doomed)


def _bounded(value: Detail) -> object:
    if isinstance(value, str):
        return value[:_MAX_CHARACTERS]
    if not isinstance(value, Sequence):
        return value
    more = len(value) - _MAX_ELEMENTS
    listed = [each[:_MAX_ELEMENT] for each in value[:_MAX_ELEMENTS]]
    return [*listed, f"and {more} more"] if more > 0 else listed
