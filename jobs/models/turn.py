"""Kinds of work that serve all tenants in turn: which rows wait, and when each tenant was last served."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, partial_index


@dataclass(frozen=True, slots=True)
class WorkKind:
    """One kind of shared work: the rows it works on, and how often it tries each.

    Attributes:
        name: its name in logs and in `turns`.
        table: the table, with the columns id, tenant_id, state, lease_id, lease_expires_at.
        state: the state of rows that wait or are worked on.
        counter: the column that counts attempts.
        later: the column that holds the time before which a row is not taken again.
        max_attempts: attempts before the row is given up.
        only: SQL condition of the rows that this kind takes, if another kind takes the others; nothing in it
            comes from outside.
        size: SQL expression of how much work a row is, for kinds whose small rows may be taken together.
    """

    name: str
    table: str
    state: str
    counter: str
    later: str = "run_after"
    max_attempts: int = 3
    only: str = ""
    size: str = "CAST(NULL AS integer)"

    @property
    def waiting(self) -> str:
        """SQL condition of rows that any worker may take."""
        return f"state = '{self.state}' AND lease_id IS NULL AND {self.later} IS NULL{self._of_this_work}"

    @property
    def held(self) -> str:
        """SQL condition of rows that a worker holds, or held until it died."""
        return f"state = '{self.state}' AND lease_id IS NOT NULL{self._of_this_work}"

    @property
    def put_off(self) -> str:
        """SQL condition of rows that wait for their time."""
        return f"state = '{self.state}' AND lease_id IS NULL AND {self.later} IS NOT NULL{self._of_this_work}"

    @property
    def _of_this_work(self) -> str:
        return f" AND {self.only}" if self.only else ""


# A prompt that is not counted yet is reserved by its bytes, which bound its characters.
COUNTING: Final = WorkKind(
    "count", "jobs", "preparing", counter="num_preparations", size="reserved_tokens - max_tokens"
)
PLANNING: Final = WorkKind("plan", "summaries", "preparing", counter="num_plannings", later="plan_after")
VALIDATION: Final = WorkKind("validate", "batches", "validating", counter="num_validations")
# A document that lost so many workers is given up: it may be what kills them.
EXTRACTION: Final = WorkKind("extract", "documents", "extracting", counter="attempt", max_attempts=5)


def indexes(kind: WorkKind) -> tuple[Index, ...]:
    """Describe the partial indexes of a kind's table.

    Each row is in exactly one of them. None holds `lease_expires_at`, so renewals stay on their page (HOT).
    """
    return (
        partial_index(f"ix_{kind.table}_waiting", "tenant_id", "id", where=kind.waiting),
        partial_index(f"ix_{kind.table}_held", "tenant_id", where=kind.held),
        partial_index(f"ix_{kind.table}_put_off", kind.later, where=kind.put_off),
    )


class TenantTurn(Base):
    """When a tenant was last served with work of one kind. `turns.lifecycle` writes it.

    Attributes:
        kind: a `WorkKind.name`.
        tenant_id: the tenant.
        served_at: when a worker last took a row of the tenant. The one served longest ago comes next.
        paused_until: workers take none of its rows before this, as its quota is full. Null: it was never
            paused.
    """

    __tablename__ = "turns"
    __table_args__ = (CheckConstraint("kind <> ''", name="kind"),)

    kind: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    served_at: Mapped[datetime]
    paused_until: Mapped[datetime | None]
