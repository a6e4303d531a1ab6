"""The route of embeddings, compatible with OpenAI's."""

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.completions import embeddings
from api.completions.placement import REPLAYED, repetition_of
from api.completions.replies import EmbeddingsReply
from api.completions.routes import error_of, give_up
from api.http import deliveries
from api.http.body import read_body
from api.http.deliveries import HandedOver
from api.http.departures import unless_gone
from api.http.dependencies import CallerDep, ServicesDep
from api.http.idempotency import IdempotencyDep
from api.http.openapi import json_body, responses
from jobs.embeddings.requests import EmbeddingsRequest
from jobs.models import Job

router = APIRouter(tags=["interactive"])

_ERRORS: Final = (400, 404, 409, 413, 500, 503, 504)


@router.post(
    "/v1/embeddings",
    summary="Create embeddings",
    responses=responses(200, EmbeddingsReply, "The vectors, in the order of the inputs", *_ERRORS),
    openapi_extra=json_body(EmbeddingsRequest),
)
async def create_embeddings(
    request: Request, services: ServicesDep, caller: CallerDep, idempotency: IdempotencyDep
) -> Response:
    """Compute the vectors of texts while you wait, ahead of batch work, where the model's engines embed.

    Each input is a job. Closing the connection cancels them, unless the request has an Idempotency-Key.
    """
    raw = await read_body(request, max_bytes=services.settings.api.max_body_bytes, max_values=None)
    parsed = await embeddings.parse(services, raw)
    repetition = repetition_of(idempotency, parsed.request_sha256)
    jobs, is_repeated = await embeddings.submit(services, parsed, caller=caller, repetition=repetition)
    ended: list[Job] | None = None
    try:
        ended = await unless_gone(request, embeddings.until_all_ended(services, jobs))
    finally:
        # Where one fails, the others are in vain; a caller that left may come back for all of them.
        if len(ended) < len(jobs) if ended is not None else repetition.guard is None:
            await give_up(services, *(job.id for job in jobs), tenant_id=jobs[0].tenant_id)
    if (error := error_of(ended[0])) is not None:
        raise error
    body = await embeddings.written(services, parsed, ended)
    deliveries.note(request, HandedOver([job.id for job in jobs]))
    return Response(body, media_type=JSONResponse.media_type, headers=REPLAYED if is_repeated else None)
