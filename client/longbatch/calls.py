"""The calls of the API about jobs, documents and the server, as flows."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from longbatch.errors import ApiError, ServerUnreachableError, WaitTimeoutError
from longbatch.flows import (
    BRIEF,
    NO_RETRIES,
    TIMEOUT_SECONDS,
    TOO_MANY,
    UNAVAILABLE,
    Flow,
    Pause,
    Request,
    Retries,
    get,
    post,
    route,
    send,
    with_key,
)

ENDED: Final = frozenset({"completed", "failed", "cancelled", "expired"})
# Length of a long poll; the server allows 60 s, but proxies in between often end a request after a minute.
POLL_SECONDS: Final = 25
# Enough to wait through a restart of the server, which takes seconds.
_WAITING: Final = Retries(away_seconds=20.0, full_seconds=600.0, max_faults=4)
_GRACE_SECONDS: Final = 5.0  # for an answer that is on its way when the time ends
_TRANSFER_SECONDS: Final = 120.0  # between two reads or writes of an upload
_PAGE: Final = 100

JSON = dict[str, Any]


def submit_job(body: Mapping[str, object], *, key: str | None = None) -> Flow[JSON]:
    """Submit a job; the idempotency key keeps a repeated request from creating a second one."""
    request = with_key(Request("POST", "/v1/jobs", json=body), key or str(uuid.uuid4()))
    return (yield from send(request, BRIEF))


def job(job_id: str) -> Flow[JSON]:
    """Fetch a job in its current state."""
    return (yield from get(_job(job_id)))


def job_result(job_id: str, retries: Retries = BRIEF) -> Flow[JSON]:
    """Fetch the output of a job that has ended."""
    return (yield from get(f"{_job(job_id)}/result", retries))


def job_with_output(job_id: str) -> Flow[JSON]:
    """Fetch a job, with its `output` if it has ended."""
    found = yield from job(job_id)
    return (yield from _with_output(found))


def wait_for_job(
    job_id: str, *, on_change: Callable[[JSON], None] = lambda _: None, timeout: float | None = None
) -> Flow[JSON]:
    """Poll until the job ends and return it; `on_change` gets every earlier answer.

    Raises:
        WaitTimeoutError: it did not end within `timeout` seconds.
    """
    ends_at = float("inf") if timeout is None else time.monotonic() + timeout
    found = yield from job(job_id)
    while found["state"] not in ENDED:
        on_change(found)
        left = ends_at - time.monotonic()
        if left <= 0:
            raise WaitTimeoutError(f"{job_id} is {found['state']} after {timeout:g} s; it goes on.")
        # Below a second there is no long poll: the last look of all comes at the end of the time.
        poll = int(min(POLL_SECONDS, left))
        if poll < 1:
            yield Pause(left)
        retries = replace(
            _WAITING,
            away_seconds=min(_WAITING.away_seconds, left),
            full_seconds=min(_WAITING.full_seconds, left),
        )
        params = {"wait": poll} if poll else None
        timeout_of_one = min(poll + TIMEOUT_SECONDS, left + _GRACE_SECONDS)
        try:
            found = yield from get(_job(job_id), retries, params=params, timeout=timeout_of_one)
        except (ServerUnreachableError, ApiError) as error:
            if left >= _patience_with(error):
                raise
            raise WaitTimeoutError(f"{job_id} has not ended after {timeout:g} s: {error.message}") from error
    return found


def _patience_with(error: ServerUnreachableError | ApiError) -> float:
    """Return how many seconds a wait bears an error; 0 if no wait helps."""
    status = error.status if isinstance(error, ApiError) else None
    if status == TOO_MANY:
        return _WAITING.full_seconds
    return _WAITING.away_seconds if status is None or status in UNAVAILABLE else 0.0


def finished_job(job_id: str, *, timeout: float | None = None) -> Flow[JSON]:
    """Wait until the job ends, and return it with its `output`."""
    found = yield from wait_for_job(job_id, timeout=timeout)
    return (yield from _with_output(found))


def job_attempts(job_id: str) -> Flow[JSON]:
    """Fetch the attempts of a job, oldest first."""
    return (yield from get(f"{_job(job_id)}/attempts"))


def cancel_job(job_id: str) -> Flow[JSON]:
    """Cancel a job, or ask a running one to stop; an ended one stays as it is."""
    return (yield from post(f"{_job(job_id)}/cancel"))


def cancel_jobs(filters: Mapping[str, object]) -> Flow[int]:
    """Cancel the jobs that match all filters; return how many were cancelled or asked to stop."""
    found = yield from post("/v1/jobs/cancel", dict(filters))
    return int(found["cancelled"])


def page(path: str, query: Mapping[str, object]) -> Flow[JSON]:
    """Fetch a page of a list, newest first."""
    given = {name: value for name, value in query.items() if value is not None}
    return (yield from get(path, params={"limit": _PAGE, **given}))


def add_document(
    path: Path,
    *,
    name: str | None = None,
    kind: str | None = None,
    encoding: str | None = None,
    retries: Retries = BRIEF,
) -> Flow[JSON]:
    """Upload a file and return its document; the same bytes are the same document.

    Args:
        path: the file.
        name: the file name to give to the server; None for the file's own.
        kind: the format of the bytes; None lets the server find out.
        encoding: of a text; None lets the server find out.
        retries: how long to repeat the call.

    Raises:
        OSError: the file cannot be read.
    """
    filename = (name or path.name).encode(errors="replace").decode()
    named = {"filename": filename, "kind": kind, "encoding": encoding}
    params = {name: value for name, value in named.items() if value is not None}
    headers = {"Content-Type": "application/octet-stream"}
    request = Request("POST", "/v1/documents", params, file=path, headers=headers, timeout=_TRANSFER_SECONDS)
    return (yield from send(request, retries))


def document(document_id: str) -> Flow[JSON]:
    """Fetch a document."""
    return (yield from get(route("documents", document_id)))


def delete_document(document_id: str) -> Flow[JSON]:
    """Delete a document and its text."""
    return (yield from send(Request("DELETE", route("documents", document_id)), BRIEF))


def text_path(document_id: str) -> str:
    """Return the path of a document's text."""
    return route("documents", document_id, "text")


def call(
    method: str, path: str, *, params: Mapping[str, Any] | None = None, json: object = None
) -> Flow[JSON]:
    """Call any route; only reads are repeated."""
    return (yield from send(Request(method, path, params, json), BRIEF if method == "GET" else NO_RETRIES))


def version() -> Flow[JSON]:
    """Fetch the server's version and model without retries, to report a missing server at once."""
    return (yield from get("/v1/version", NO_RETRIES))


def served_model(retries: Retries = BRIEF) -> Flow[str]:
    """Fetch the name of the served model.

    Raises:
        ApiError: the answer does not come from a Longbatch server.
    """
    found = yield from get("/v1/version", retries)
    if not isinstance(found.get("model"), str):
        message = "the answer comes from something that is not a Longbatch server"
        raise ApiError(message, status=200, code="unknown")
    return str(found["model"])


def console_link() -> Flow[JSON]:
    """Make a link that signs a browser in to the console once: `path`, and when it `expires_at`."""
    return (yield from post("/console/codes", retries=NO_RETRIES))


def _with_output(found: JSON) -> Flow[JSON]:
    if found["state"] not in ENDED:
        return found
    result = yield from job_result(found["id"], _WAITING)
    return {**found, "output": result["output"], "usage": result.get("usage")}


def _job(job_id: str) -> str:
    return route("jobs", job_id)
