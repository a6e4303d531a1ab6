"""Dry runs of batches: reads the file part by part and writes nothing."""

import time
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from api.batches.requests import EstimateRequest
from api.http.identifiers import parse_field
from api.runtime.compute import LONG_BYTES
from api.runtime.services import Services
from jobs import files, ids
from jobs.batches.estimate import Estimator
from jobs.batches.lines import LineFaultError
from jobs.engines import registry
from jobs.errors import InvalidRequestError, NotFoundError, UnavailableError
from jobs.files.lines import FileLine, Splitter
from jobs.files.stores import make_store
from jobs.forecast.duration import Estimate
from jobs.models import JsonObject
from jobs.prompts.counter import PromptCounter
from jobs.states.batch import Endpoint

# Other requests wait for it.
_TURN_SECONDS: Final = 0.25


async def estimate(services: Services, asked: EstimateRequest, *, tenant_id: UUID) -> JsonObject:
    """Estimate the tokens, KV blocks and time that a batch of this file would take.

    Raises:
        InvalidRequestError: the tenant has no such file.
        UnavailableError: the tokenizer or the database is not available; try again.
    """
    wrong_file = "There is no such file."
    file_id = parse_field(asked.input_file_id, ids.parse_file_id, param="input_file_id", message=wrong_file)
    try:
        file = await services.transact(files.get, file_id=file_id, tenant_id=tenant_id)
    except NotFoundError:
        raise InvalidRequestError(wrong_file, param="input_file_id") from None
    estimator = await _make_estimator(services, Endpoint(asked.endpoint))
    splitter = Splitter(max_line_bytes=services.settings.api.max_body_bytes)
    store = make_store(services.settings)
    offset = 0
    while offset < file.num_bytes:
        found = await services.transact(files.load_parts, file_id=file.id, offset=offset)
        if not found:
            raise InvalidRequestError(wrong_file, param="input_file_id")  # deleted meanwhile
        chunk = await services.compute(LONG_BYTES + 1, files.unpack, found, store, offset=offset)
        await _take(services, estimator, splitter.feed(chunk))
        offset += len(chunk)
    await _take(services, estimator, splitter.close())
    seconds = await services.queue_positions.seconds_until_done(
        estimator.found, services.settings.engine.model
    )
    return _object(asked, estimator.found, seconds)


async def _make_estimator(services: Services, endpoint: Endpoint) -> Estimator:
    tokenizer = services.tokenizer.current
    if tokenizer is None:
        raise UnavailableError("The tokenizer is not loaded yet; try again.")
    settings = services.settings
    registered = await services.transact(registry.registered_capacities)
    return Estimator(
        endpoint,
        registered.get(settings.engine.model) or [registry.configured_capacity(settings.engine)],
        PromptCounter(tokenizer),
        offer=await services.offer(),
        max_line_bytes=settings.api.max_body_bytes,
        default_max_tokens=settings.batches.default_max_tokens,
    )


async def _take(services: Services, estimator: Estimator, lines: Iterator[FileLine]) -> None:
    """Add lines to the estimate, in turns with other requests."""
    while not await services.compute(LONG_BYTES + 1, estimator.take, lines, seconds=_TURN_SECONDS):
        pass


def _object(asked: EstimateRequest, found: Estimate, seconds: float | None) -> JsonObject:
    faults = found.faults
    if not found.num_lines:
        faults = [LineFaultError("empty_file", "The file contains no requests.").as_object(None)]
    failing = found.num_refused + found.num_never_fit + found.num_faults
    return {
        "object": "batch.estimate",
        "input_file_id": asked.input_file_id,
        "endpoint": asked.endpoint,
        "request_counts": {
            "total": found.num_lines,
            "runnable": found.num_lines - failing,
            "refused": found.num_refused,
            "never_fit": found.num_never_fit,
            "faulty": found.num_faults,
        },
        "prompt_tokens": found.prompt_tokens,
        "max_output_tokens": found.max_output_tokens,
        "kv_blocks": found.kv_blocks,
        "is_exact": found.is_exact,
        "refused": found.refused,
        "never_fit": found.never_fit,
        "errors": {"object": "list", "data": faults},
        "estimated_seconds": None if seconds is None else round(seconds),
        "estimated_finish_at": None if seconds is None else round(time.time() + seconds),
    }
