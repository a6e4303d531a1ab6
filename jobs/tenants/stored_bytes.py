"""What tenants keep in the database: noted by triggers with every write, added up later.

Triggers of the migration 0029 insert a note for each tenant of a statement that stores or deletes prompts,
results, parts of files, or texts of documents. So whatever writes or dies, the sum of the notes and the total
is the sum over the rows. Inserts wait for nobody.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.models.tenant import StoredNote, StoredTotal


def read(session: Session, tenant_id: UUID) -> int:
    """Read how many bytes the tenant keeps, those that this transaction wrote included."""
    notes = select(func.sum(StoredNote.num_bytes)).where(StoredNote.tenant_id == tenant_id)
    total = select(StoredTotal.num_bytes).where(StoredTotal.tenant_id == tenant_id)
    # One statement, and so one snapshot: adding up moves notes to the total.
    noted, summed = (func.coalesce(each.scalar_subquery(), 0) for each in (notes, total))
    return int(session.scalar(select(noted + summed)) or 0)


def unsummed() -> Select[UUID]:
    """Select notes that are not yet added up."""
    return select(StoredNote.id).order_by(StoredNote.id)


def add_up(session: Session, *, limit: int = 5000, only: Sequence[UUID] | None = None) -> int:
    """Add some notes to their tenants' totals. Readers see the same sums all the time.

    Args:
        session: the caller's transaction.
        limit: most notes to add.
        only: of these notes; None: of all.

    Returns:
        How many were added.
    """
    some = unsummed() if only is None else unsummed().where(StoredNote.id.in_(only))
    taken = session.scalars(some.limit(limit).with_for_update(skip_locked=True)).all()
    gone = delete(StoredNote).where(StoredNote.id.in_(taken))
    notes = gone.returning(StoredNote.tenant_id, StoredNote.num_bytes).cte("notes")
    # In one order, so that two rounds cannot deadlock.
    tenant_id = notes.c.tenant_id
    summed = select(tenant_id, func.sum(notes.c.num_bytes)).group_by(tenant_id).order_by(tenant_id)
    statement = insert(StoredTotal).from_select(["tenant_id", "num_bytes"], summed)
    more = {"num_bytes": StoredTotal.num_bytes + statement.excluded.num_bytes}
    if taken:
        session.execute(statement.on_conflict_do_update(index_elements=["tenant_id"], set_=more))
    return len(taken)
