"""The columns of what operators can keep from starting jobs."""

from datetime import datetime
from typing import Final

from sqlalchemy import CheckConstraint
from sqlalchemy.orm import Mapped

from jobs.database.base import one_of
from jobs.states.halt import HaltKind

_ALL_OR_NONE: Final = "num_nulls(halt, halted_reason, halted_by_name, halted_since) IN (0, 4)"


class Haltable:
    """An engine, or a tenant's queue; `scheduling.halts` writes these columns.

    Attributes:
        halt: a `HaltKind`. Null: jobs start.
        halted_reason: in the operator's words; tenants whose jobs wait read it. Null: not halted.
        halted_by: the API key that ordered it, `lb_` and its public part. Null: the command line, or not
            halted.
        halted_by_name: the key's name at that time. Null: not halted.
        halted_since: since when no job starts. Null: not halted.
    """

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
