"""Where the job of a request goes, and how a repeated request finds it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final

from api.http.callbacks import Callback
from api.http.idempotency import IdempotencyHeaders
from jobs.models import JsonObject
from jobs.responses.objects import WAITED_TASK
from jobs.responses.rows import ResponseSpec
from jobs.states import Lane
from jobs.submission.repetition import Repetition

# No caller waits longer; one that leaves cancels its job long before.
WAITING: Final = timedelta(hours=1)
# What a repeated request is told.
REPLAYED: Final[Mapping[str, str]] = {"Idempotent-Replayed": "true"}
NO_CALLBACK: Final = Callback(None, None)


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


def repetition_of(
    idempotency: IdempotencyHeaders, request_sha256: bytes, *, is_submission: bool = False
) -> Repetition:
    """Return what lets a repeated request find the job of the first.

    A client that only counts its tries, and waits for the answer, has left the first one and wants another.
    """
    is_repeatable = is_submission or idempotency.key is not None
    guard = idempotency.for_request(request_sha256) if is_repeatable else None
    return Repetition(guard, is_submission)


def meaning_sha256(route: str, body: Mapping[str, Any]) -> bytes:
    """Hash what a request means: white space, order and fields that are null are ignored."""
    given = {name: each for name, each in body.items() if each is not None}
    return sha256(f"{route}\n{json.dumps(given, sort_keys=True)}".encode()).digest()
