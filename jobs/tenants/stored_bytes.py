"""What tenants keep in the database: noted by triggers with every write, added up later.

Triggers of the migrations 0029, 0059 and 0060 insert a note for each tenant of a statement that stores or
deletes prompts, results, parts of files, texts of documents, what is asked of documents, or findings. So
whatever writes or dies, the sum of the notes and the total is the sum over the rows. Inserts wait for nobody.
"""

from typing import Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.models.tenant import StoredNote, StoredTotal
from jobs.tenants.notes import Notes


def read(session: Session, tenant_id: UUID) -> int:
    """Read how many bytes the tenant keeps, those that this transaction wrote included."""
    notes = select(func.sum(StoredNote.num_bytes)).where(StoredNote.tenant_id == tenant_id)
    total = select(StoredTotal.num_bytes).where(StoredTotal.tenant_id == tenant_id)
    # One statement, and so one snapshot: adding up moves notes to the total.
    noted, summed = (func.coalesce(each.scalar_subquery(), 0) for each in (notes, total))
    return int(session.scalar(select(noted + summed)) or 0)


_NOTES: Final = Notes(StoredNote, StoredTotal, keys=("tenant_id",), sums=("num_bytes",))
unsummed, add_up = _NOTES.unsummed, _NOTES.add_up
