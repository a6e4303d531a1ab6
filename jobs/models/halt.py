"""The columns of what operators can keep from starting jobs."""

from datetime import datetime
from typing import Final

from sqlalchemy import CheckConstraint
from sqlalchemy.orm import Mapped

from jobs.database.base import one_of
from jobs.states.halt import HaltKind

_ALL_OR_NONE: Final = "num_nulls(halt, halted_reason, halted_by_name, halted_since) IN (0, 4)"


class Haltable:
    """An engine, or a tenant's queue; `scheduling.halts` writes these columns, which the tables describe."""

    halt: Mapped[str | None]
    halted_reason: Mapped[str | None]
    halted_by: Mapped[str | None]
    halted_by_name: Mapped[str | None]
    halted_since: Mapped[datetime | None]


def halt_checks() -> tuple[CheckConstraint, CheckConstraint]:
    """Make the constraints of a table with these columns."""
    return (
        CheckConstraint(one_of("halt", sorted(HaltKind)), name="halt"),
        CheckConstraint(_ALL_OR_NONE, name="halt_complete"),
    )
