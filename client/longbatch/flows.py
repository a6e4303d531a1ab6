"""Conversations with a server, free of I/O: generators that yield steps and receive their results.

A flow yields what must be done next: send a request, wait, or read a file. `Client` performs the steps of
a flow in the calling thread, `AsyncClient` on its event loop, so every call of the API is written once.
"""

import json
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from longbatch.errors import ApiError, LongbatchError, ServerUnreachableError

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 0.5  # doubles with every try
_MAX_PAUSE_SECONDS: Final = 10.0
_MAX_RETRY_AFTER_SECONDS: Final = 60.0  # a longer Retry-After is asked again after this time
UNAVAILABLE: Final = frozenset({502, 503, 504})
TOO_MANY: Final = 429  # too many requests, or too much queued or stored


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request to send.

    Attributes:
        path: below the server's URL.
        json: the body; None if there is none.
        file: a file to send as the body, opened again for each try.
        timeout: seconds between two reads or writes.
    """

    method: str
    path: str
    params: Mapping[str, Any] | None = None
    json: object = None
    file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait.

    Attributes:
        seconds: how long.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Work that blocks, such as reading a file; the step's result is what the call returns."""

    call: Callable[[], Any]


Step = Request | Pause | Work
Flow = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class Retries:
    """How long to repeat a request that fails for reasons that pass.

    Attributes:
        away_seconds: for a server that does not answer, or answers 502, 503 or 504.
        full_seconds: while a rate limit or quota is reached (429), unless the server declared it final.
        max_faults: answers 500 and above, other than those, to one request; that many are no accident.
    """

    away_seconds: float = 0.0
    full_seconds: float = 0.0
    max_faults: int = 1


NO_RETRIES: Final = Retries()
# A hiccup of the network passes; a server that was never started is reported at once.
BRIEF: Final = Retries(away_seconds=0.5)
# A restart with a migration is over within three minutes; a full queue ends in the time of its longest jobs.
PATIENT: Final = Retries(away_seconds=180.0, full_seconds=3600.0, max_faults=4)


def send(request: Request, retries: Retries = NO_RETRIES) -> Flow[dict[str, Any]]:
    """Send a request until it succeeds, as long as retrying can help; return the JSON of the answer.

    Raises:
        ServerUnreachableError: no complete answer arrived.
        ApiError: the answer is an error, or does not come from a Longbatch server.
    """
    pause, faults, away_since, full_since = _FIRST_PAUSE_SECONDS, 0, None, None
    while True:
        try:
            return read((yield request))
        except ServerUnreachableError as error:
            is_away, is_full, wanted = True, False, None
            refusal: LongbatchError = error
        except ApiError as error:
            is_away, is_full = error.status in UNAVAILABLE, error.status == TOO_MANY and not error.is_final
            wanted, refusal = error.retry_after, error
            faults += error.status >= 500 and not is_away
            if not is_away and not is_full and (error.status < 500 or faults >= retries.max_faults):
                raise
        now, wait = time.monotonic(), min(wanted or pause, _MAX_RETRY_AFTER_SECONDS)
        away_since = (away_since or now) if is_away else None
        full_since = (full_since or now) if is_full else None
        if is_away and now + wait - (away_since or now) > retries.away_seconds:
            raise refusal
        if is_full and now + wait - (full_since or now) > retries.full_seconds:
            raise refusal
        yield Pause(wait)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def get(path: str, retries: Retries = BRIEF, **request: Any) -> Flow[dict[str, Any]]:  # noqa: ANN401  # of `Request`
    """Send a GET request and return the JSON of the answer."""
    return (yield from send(Request("GET", path, **request), retries))


def post(path: str, json: object = None, *, retries: Retries = BRIEF, **request: Any) -> Flow[dict[str, Any]]:  # noqa: ANN401  # of `Request`
    """Send a POST request and return the JSON of the answer."""
    return (yield from send(Request("POST", path, json=json, **request), retries))


def with_key(request: Request, key: str) -> Request:
    """Add an idempotency key, which keeps a repeated request from working twice."""
    return replace(request, headers={**request.headers, "Idempotency-Key": key})


def work(call: Callable[[], T]) -> Flow[T]:
    """Do work that blocks, and return its result."""
    found: T = yield Work(call)
    return found


def read(reply: Reply) -> dict[str, Any]:
    """Return the JSON of an answer.

    Raises:
        ApiError: the answer is an error, or does not come from a Longbatch server.
    """
    try:
        content = _object(reply.body)
        if reply.status < 400:
            return content
        error = content["error"]
        raise ApiError(
            error["message"],
            status=reply.status,
            code=error["code"],
            param=error["param"],
            retry_after=_seconds(reply.headers.get("retry-after")),
            is_final=reply.headers.get("x-should-retry") == "false",
        )
    except (ValueError, KeyError, TypeError):
        message = f"status {reply.status} from something that is not a Longbatch server"
        raise ApiError(message, status=reply.status, code="unknown") from None


def route(*parts: str) -> str:
    """Return the path below `/v1` that these names and ids lead to."""
    return "/".join(["/v1", *map(segment, parts)])


def segment(identifier: str) -> str:
    """Make an id safe as one segment of a path; an invalid id gets the server's 404."""
    return "".join(char if char.isalnum() or char in "_-" else "." for char in identifier) or "."


def _object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise ValueError or TypeError for anything else."""
    found = json.loads(body)
    if not isinstance(found, dict):
        raise TypeError
    return found


def _seconds(header: str | None) -> float | None:
    """Parse a Retry-After header in seconds; return None for a date or no header."""
    return float(header) if header is not None and header.isdecimal() else None
