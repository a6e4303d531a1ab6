"""Notes that transactions insert instead of changing a sum that others change too, and their adding up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from jobs.models.tenant import StoredNote, StoredTotal, UsageDay, UsageEntry


@dataclass(frozen=True, slots=True)
class Notes:
    """A table of notes, and the table that they are added up into.

    Attributes:
        keys: columns that name a sum, in both tables.
        sums: columns that are added up.
    """

    table: type[StoredNote | UsageEntry]
    totals: type[StoredTotal | UsageDay]
    keys: Sequence[str]
    sums: Sequence[str]

    def unsummed(self) -> Select[UUID]:
        """Select notes that are not yet added up, oldest first."""
        return select(self.table.id).order_by(self.table.id)

    def columns(self, table: type[StoredNote | UsageEntry | UsageDay]) -> list[InstrumentedAttribute[Any]]:
        """Return the columns of notes in one of the tables."""
        return [getattr(table, name) for name in (*self.keys, *self.sums)]

    def add_up(self, session: Session, *, limit: int = 5000, only: Sequence[UUID] | None = None) -> int:
        """Add some notes to their sums. Readers see the same sums all the time.

        Args:
            session: the caller's transaction.
            limit: most notes to add.
            only: of these notes; None: of all.

        Returns:
            How many were added.
        """
        some = self.unsummed() if only is None else self.unsummed().where(self.table.id.in_(only))
        taken = session.scalars(some.limit(limit).with_for_update(skip_locked=True)).all()
        if not taken:
            return 0
        gone = delete(self.table).where(self.table.id.in_(taken)).returning(*self.columns(self.table))
        notes = gone.cte("notes")
        keys = [notes.c[name] for name in self.keys]
        sums = [func.sum(notes.c[name]) for name in self.sums]
        # In one order, so that two rounds cannot deadlock.
        summed = select(*keys, *sums).group_by(*keys).order_by(*keys)
        statement = insert(self.totals).from_select([*self.keys, *self.sums], summed)
        more = {name: getattr(self.totals, name) + statement.excluded[name] for name in self.sums}
        session.execute(statement.on_conflict_do_update(index_elements=list(self.keys), set_=more))
        return len(taken)
