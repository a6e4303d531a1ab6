"""Jobs as answers: JSON, entity tags, and what a second look may leave out."""

import json
from collections.abc import Mapping
from hashlib import sha256

from fastapi.responses import JSONResponse
from starlette.responses import Response

from jobs.models import Job
from jobs.views import job_object


def job_response(
    job: Job, *, status: int = 200, if_none_match: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The job with its entity tag; 304 without a body when the caller has this very version."""
    body = json.dumps(job_object(job), ensure_ascii=False, separators=(",", ":")).encode()
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    shown = {"ETag": tag, "Cache-Control": "private, no-cache", **(headers or {})}
    if if_none_match is not None and _matches(if_none_match, tag):
        return Response(status_code=304, headers=shown)
    return Response(body, status, shown, media_type=JSONResponse.media_type)


def _matches(if_none_match: str, tag: str) -> bool:
    """RFC 9110, 13.1.2: a list of tags compared weakly, or any version at all."""
    given = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return tag in given or "*" in given
