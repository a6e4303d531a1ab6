"""How a repeated request finds the jobs of the first."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.models import Job, JsonObject
from jobs.states import JobState
from jobs.tenants.idempotency import IdempotencyGuard, RequestKind, run_idempotently

# A job that ended like this gave its caller nothing to repeat.
_WITHOUT_ANSWER: Final = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})


@dataclass(frozen=True, slots=True)
class Repetition:
    """What lets a repeated request find the jobs of the first.

    Attributes:
        guard: of the request; None: each one makes jobs.
        is_submission: its caller does not wait, so it gets the job back however that ended; otherwise one
            that ended without an answer is run again.
    """

    guard: IdempotencyGuard | None = None
    is_submission: bool = False

    def run(
        self, session: Session, make: Callable[[Session], list[Job]], *, tenant_id: UUID
    ) -> tuple[list[Job], bool]:
        """Make the request's jobs, or return those that an earlier request made, and True."""
        find = partial(_find, is_submission=self.is_submission)
        kind: RequestKind[list[Job]] = RequestKind("job", record=_recorded, find=find)
        return run_idempotently(session, self.guard, make, tenant_id=tenant_id, kind=kind)


NO_REPETITION: Final = Repetition()


def _recorded(jobs: list[Job]) -> UUID | JsonObject:
    """Return what finds the jobs again: one by its id, several choices by theirs."""
    return jobs[0].id if len(jobs) == 1 else {"choices": [job.id.hex for job in jobs]}


def _find(session: Session, recorded: UUID | JsonObject, *, is_submission: bool) -> list[Job] | None:
    choices = recorded.get("choices") if isinstance(recorded, dict) else [recorded.hex]
    ids = [UUID(hex=each) for each in choices] if isinstance(choices, list) else []
    jobs = [job for each in ids if (job := session.get(Job, each)) is not None]
    is_whole = bool(jobs) and len(jobs) == len(ids)
    has_answer = is_submission or not any(job.state in _WITHOUT_ANSWER for job in jobs)
    return jobs if is_whole and has_answer else None
