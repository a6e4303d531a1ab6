"""Jobs as responses: JSON and entity tags, so that a repeated poll can get 304."""

from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256

from fastapi.responses import JSONResponse
from pydantic_core import to_json
from starlette.responses import Response

from jobs.models import Job
from jobs.views import JobObject, JobWithQueueObject, QueuePosition, job_object, queue_object


def job_response(job: Job, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Render the job with its entity tag."""
    body = _json(job_object(job))
    return Response(
        body, status, {**_tagged(_tag(body)), **(headers or {})}, media_type=JSONResponse.media_type
    )


async def polled_job_response(
    job: Job,
    find_place: Callable[[Job], Awaitable[QueuePosition | None]],
    *,
    if_none_match: str | None = None,
) -> Response:
    """Render the job and its queue position, or 304 if the job is unchanged.

    The tag covers the job alone: a position changes all the time and is not looked up for a 304.
    """
    seen = job_object(job)
    tag = _tag(_json(seen))
    if if_none_match is not None and _matches(if_none_match, tag):
        return Response(status_code=304, headers=_tagged(tag))
    place = await find_place(job)
    body = _json(JobWithQueueObject(**seen, queue=queue_object(place) if place else None))
    return Response(body, headers=_tagged(tag), media_type=JSONResponse.media_type)


def _json(shown: JobObject) -> bytes:
    return to_json(shown)


def _tag(body: bytes) -> str:
    """Return a weak tag (RFC 9110, 8.8.1), as the queue position may differ."""
    return f'W/"{sha256(body).hexdigest()[:32]}"'


def _tagged(tag: str) -> dict[str, str]:
    return {"ETag": tag, "Cache-Control": "private, no-cache"}


def _matches(if_none_match: str, tag: str) -> bool:
    """Compare weakly with a list of tags, or `*` for any version (RFC 9110, 13.1.2)."""
    given = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return tag.removeprefix("W/") in given or "*" in given
