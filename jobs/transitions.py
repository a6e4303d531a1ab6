"""The lease of a running job, and requests to stop it."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, or_, update
from sqlalchemy.orm import Session

from jobs.models import Job
from jobs.states import StopReason


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a running job."""

    job_id: UUID
    lease_id: UUID


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another worker may have the job now: this one must not write to it."""


# A stronger reason to stop replaces a weaker one.
_STRENGTH = {StopReason.SHUTDOWN: 0, StopReason.PREEMPT: 1, StopReason.EXPIRE: 2, StopReason.CANCEL: 3}


def request_stop(session: Session, reason: StopReason, conditions: Sequence[ColumnElement[bool]]) -> int:
    """Ask running jobs to stop; a stronger reason replaces a weaker one.

    Returns:
        How many jobs it asked.
    """
    asked = session.execute(
        update(Job)
        .where(*conditions, Job.state == "running", weaker_than(reason))
        .values(stop_reason=reason.value)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return len(asked.all())


def weaker_than(reason: StopReason) -> ColumnElement[bool]:
    """Match jobs that were not asked to stop, or only for a weaker reason."""
    weaker = [each.value for each, strength in _STRENGTH.items() if strength < _STRENGTH[reason]]
    return or_(Job.stop_reason.is_(None), Job.stop_reason.in_(weaker))
