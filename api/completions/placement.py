"""Where the job of a request goes, and how a repeated request finds it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.http.callbacks import Callback
from api.http.idempotency import IdempotencyHeaders
from jobs.models import Job, JsonObject
from jobs.responses.objects import WAITED_TASK
from jobs.responses.rows import ResponseSpec
from jobs.states import JobState, Lane
from jobs.tenants.idempotency import IdempotencyGuard, RequestKind, run_idempotently

# No caller waits longer; one that leaves cancels its job long before.
WAITING: Final = timedelta(hours=1)
# What a repeated request is told.
REPLAYED: Final[Mapping[str, str]] = {"Idempotent-Replayed": "true"}
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

    def run(
        self, session: Session, make: Callable[[Session], list[Job]], *, tenant_id: UUID
    ) -> tuple[list[Job], bool]:
        """Make the request's jobs, or return those that an earlier request made, and True."""
        find = partial(_find, is_submission=self.is_submission)
        kind: RequestKind[list[Job]] = RequestKind("completion", record=_recorded, find=find)
        return run_idempotently(session, self.guard, make, tenant_id=tenant_id, kind=kind)


def repetition_of(
    idempotency: IdempotencyHeaders, request_sha256: bytes, *, is_submission: bool = False
) -> Repetition | None:
    """Return what lets a repeated request find the job of the first.

    A client that only counts its tries, and waits for the answer, has left the first one and wants another.

    Returns:
        None: the request asks for nothing of the kind.
    """
    if not is_submission and idempotency.key is None:
        return None
    guard = idempotency.for_request(request_sha256)
    return None if guard is None else Repetition(guard, is_submission)


def meaning_sha256(route: str, body: Mapping[str, Any]) -> bytes:
    """Hash what a request means: white space, order and fields that are null are ignored."""
    given = {name: each for name, each in body.items() if each is not None}
    return sha256(f"{route}\n{json.dumps(given, sort_keys=True)}".encode()).digest()


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
