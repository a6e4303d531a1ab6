"""Where the job of a request goes, and how a repeated request finds it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.http.callbacks import Callback
from jobs.models import Job, JsonObject
from jobs.responses.objects import WAITED_TASK
from jobs.responses.rows import ResponseSpec
from jobs.states import JobState, Lane
from jobs.tenants.idempotency import IdempotencyGuard, RequestKind, run_idempotently

# No caller waits longer; one that leaves cancels its job long before.
WAITING: Final = timedelta(hours=1)
NO_CALLBACK: Final = Callback(None, None)
# A job that ended like this gave its caller nothing to repeat.
_WITHOUT_ANSWER: Final = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request's job goes, and what it has besides what it generates.

    Attributes:
        task: outputs are predicted per task.
        rank: -1 low, 0 normal, 1 high.
        window: it expires this long after it was accepted.
        metadata: the caller's own keys and values.
        callback: notified once it has ended.
        response: what is kept of the response that its output belongs to; None: it is no response.
        prompt_param: the field of the request that has the prompt.
    """

    task: str = WAITED_TASK
    lane: Lane = Lane.INTERACTIVE
    rank: int = 0
    window: timedelta = WAITING
    metadata: JsonObject | None = None
    callback: Callback = NO_CALLBACK
    response: ResponseSpec | None = None
    prompt_param: str = "messages"


WAITED_FOR: Final = Placement()


@dataclass(frozen=True, slots=True)
class Repetition:
    """What lets a repeated request find the job of the first.

    Attributes:
        guard: of the request.
        is_submission: its caller does not wait, so it gets the job back however that ended; otherwise one
            that ended without an answer is run again.
    """

    guard: IdempotencyGuard
    is_submission: bool = False

    def run(self, session: Session, make: Callable[[Session], Job], *, tenant_id: UUID) -> tuple[Job, bool]:
        """Make the request's job, or return the one that an earlier request made, and True."""
        find = partial(_find, is_submission=self.is_submission)
        kind: RequestKind[Job] = RequestKind("completion", record=lambda job: job.id, find=find)
        return run_idempotently(session, self.guard, make, tenant_id=tenant_id, kind=kind)


def _find(session: Session, recorded: UUID | JsonObject, *, is_submission: bool) -> Job | None:
    job = session.get(Job, recorded)
    return None if job is None or (job.state in _WITHOUT_ANSWER and not is_submission) else job
