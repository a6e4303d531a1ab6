"""Kinds of work that serve all tenants: which rows wait, how they are found, and whose turn it is."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of shared work: whose rows they are, and how often one is tried.

    Attributes:
        name: in logs and in `turns`.
        table: with the columns id, tenant_id, state, lease_id, lease_expires_at.
        state: of rows that wait or are worked on.
        counter: the column of attempts begun.
        later: the column of the moment before which a row is not taken again.
        max_attempts: begun ones, until the row is given up.
    """

    name: str
    table: str
    state: str
    counter: str
    later: str = "run_after"
    max_attempts: int = 3

    @property
    def waiting(self) -> str:
        """The condition of rows that anybody may take."""
        return f"state = '{self.state}' AND lease_id IS NULL AND {self.later} IS NULL"

    @property
    def held(self) -> str:
        """The condition of rows that a worker has, or had until it died."""
        return f"state = '{self.state}' AND lease_id IS NOT NULL"

    @property
    def put_off(self) -> str:
        """The condition of rows that wait for their time."""
        return f"state = '{self.state}' AND lease_id IS NULL AND {self.later} IS NOT NULL"


COUNTING: Final = Kind("count", "jobs", "preparing", counter="num_preparations")
PLANNING: Final = Kind("plan", "summaries", "preparing", counter="num_plannings", later="plan_after")
VALIDATION: Final = Kind("validate", "batches", "validating", counter="num_validations")
# A document whose worker was lost so often is given up: it may be what kills them.
EXTRACTION: Final = Kind("extract", "documents", "extracting", counter="attempt", max_attempts=5)


def indexes(kind: Kind) -> tuple[Index, ...]:
    """Describe the partial indexes of a kind's table.

    A row is in one of them. None holds `lease_expires_at`: renewals stay on their page (HOT).
    """
    return (
        Index(f"ix_{kind.table}_waiting", "tenant_id", "id", postgresql_where=text(kind.waiting)),
        Index(f"ix_{kind.table}_held", "tenant_id", postgresql_where=text(kind.held)),
        Index(f"ix_{kind.table}_put_off", kind.later, postgresql_where=text(kind.put_off)),
    )


class TenantTurn(Base):
    """When a tenant was last served with work of one kind.

    Attributes:
        kind: of the work, see `Kind.name`.
        served_at: when the last row of the tenant was taken.
        paused_until: none of its rows is taken before; None: they may be.
    """

    __tablename__ = "turns"
    __table_args__ = (CheckConstraint("kind <> ''", name="kind"),)

    kind: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    served_at: Mapped[datetime]
    paused_until: Mapped[datetime | None]
