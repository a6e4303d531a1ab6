"""Jobs as answers: JSON, entity tags, and what a second look may leave out."""

import json
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256

from fastapi.responses import JSONResponse
from starlette.responses import Response

from jobs.models import Job
from jobs.views import JobObject, QueuePlace, SeenJobObject, job_object, queue_object


def job_response(job: Job, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The job with its entity tag."""
    body = _json(job_object(job))
    return Response(
        body, status, {**_tagged(_tag(body)), **(headers or {})}, media_type=JSONResponse.media_type
    )


async def seen_job_response(
    job: Job, find_place: Callable[[Job], Awaitable[QueuePlace | None]], *, if_none_match: str | None = None
) -> Response:
    """The job and its place in the queue; 304 without a body when the caller has this very version.

    The tag is of the job alone: a place changes all the time, and is not looked for when only it changed.
    """
    seen = job_object(job)
    tag = _tag(_json(seen))
    if if_none_match is not None and _matches(if_none_match, tag):
        return Response(status_code=304, headers=_tagged(tag))
    place = await find_place(job)
    body = _json(SeenJobObject(**seen, queue=queue_object(place) if place else None))
    return Response(body, headers=_tagged(tag), media_type=JSONResponse.media_type)


def _json(shown: JobObject) -> bytes:
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()


def _tag(body: bytes) -> str:
    """Weak (RFC 9110, 8.8.1): two answers with the same tag may differ in the place in the queue."""
    return f'W/"{sha256(body).hexdigest()[:32]}"'


def _tagged(tag: str) -> dict[str, str]:
    return {"ETag": tag, "Cache-Control": "private, no-cache"}


def _matches(if_none_match: str, tag: str) -> bool:
    """RFC 9110, 13.1.2: a list of tags compared weakly, or any version at all."""
    given = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return tag.removeprefix("W/") in given or "*" in given
