"""Requests for embeddings whose caller waits: a job for each input, and the vectors of all of them.

A job for each, as an engine books slots and KV blocks for each: a long input takes its own, short ones run
beside it, and what has ended is not computed again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from pydantic_core import to_json
from sqlalchemy.orm import Session

from api.completions import interactive
from api.completions.placement import WAITED_FOR, meaning_sha256
from api.http.body import parse_object
from api.runtime.api_keys import Caller
from api.runtime.services import Services
from jobs import queries, submission
from jobs.adapters.offers import read_offer
from jobs.embeddings import EMBED_TASK, requests, vectors
from jobs.embeddings.requests import EmbeddingsRequest
from jobs.engines import registry
from jobs.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    PromptTooLongError,
    UnavailableError,
)
from jobs.models import Job
from jobs.prompts.abilities import Takes
from jobs.prompts.chat_template import ChatTemplateError
from jobs.prompts.counter import PromptCounter
from jobs.prompts.openai import Generation, too_long_message
from jobs.prompts.store import NewText
from jobs.prompts.tokenizer import Tokenizer
from jobs.states import JobState
from jobs.states.batch import Endpoint
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec, inputs_of
from jobs.submission.repetition import Repetition

_NUMBER_BYTES: Final = 22  # of one of a vector, as JSON


@dataclass(frozen=True, slots=True)
class ParsedEmbeddings:
    """A request that was parsed.

    Attributes:
        generation: what its jobs are asked for.
        texts: its inputs, counted.
        request_sha256: of its meaning.
    """

    request: EmbeddingsRequest
    generation: Generation
    texts: Sequence[NewText]
    request_sha256: bytes


async def parse(services: Services, raw: bytes | bytearray) -> ParsedEmbeddings:
    """Parse the request in this body and count its inputs.

    Raises:
        InvalidRequestError: a field is invalid; `param` names it.
        UnavailableError: the tokenizer is not loaded yet; try again.
    """
    most, takes = await interactive.longest_prompt(services, len(raw)), await services.engines.get()
    return await services.compute_apart(len(raw), _parse, raw, services.tokenizer.current, most, takes)


async def submit(
    services: Services, parsed: ParsedEmbeddings, *, caller: Caller, repetition: Repetition
) -> tuple[list[Job], bool]:
    """Submit a job for each input, or find those that an earlier copy of the request submitted.

    Returns:
        The jobs, and True if an earlier request made them.

    Raises:
        IdempotencyConflictError: the key was used for another request.
        LimitError: the tenant's quota is full.
        ModelNotFoundError: no engine serves the model.
        ContextLengthExceededError: an input can never fit; nothing was stored.
    """
    by, served = services.submitter(caller), services.settings.engine.model
    make = partial(_submit, parsed=parsed, by=by, served=served)
    jobs, is_repeated = await services.submit(by, repetition.run, make, tenant_id=caller.tenant_id)
    if not is_repeated:
        services.doorbell.ring_for(jobs)
    return jobs, is_repeated


async def until_all_ended(services: Services, jobs: Sequence[Job]) -> list[Job]:
    """Wait for the jobs to end, in their order.

    Returns:
        All of them; or only the first that did not complete, as the others are then in vain.

    Raises:
        UnavailableError: as `interactive.until_ended`.
    """
    waits = [
        asyncio.create_task(interactive.until_final(services, job.id, tenant_id=job.tenant_id))
        for job in jobs
    ]
    try:
        for each in asyncio.as_completed(waits):
            ended = await each
            if ended.state != JobState.COMPLETED:
                return [ended]
        return [each.result() for each in waits]
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def written(services: Services, parsed: ParsedEmbeddings, ended: Sequence[Job]) -> bytes:
    """Write the body of the response, as JSON.

    Raises:
        UnavailableError: the jobs were deleted.
    """
    read = partial(queries.get_embeddings, job_ids=[job.id for job in ended])
    found: dict[UUID, bytes] = await services.transactions.run(read, tenant_ids=[ended[0].tenant_id])
    if len(found) < len(ended):
        raise UnavailableError("The request's jobs were deleted.")
    num_bytes = sum(map(len, found.values())) // vectors.FLOAT_BYTES * _NUMBER_BYTES
    return await services.compute(num_bytes, _write, parsed, ended, [found[job.id] for job in ended])


def _write(parsed: ParsedEmbeddings, ended: Sequence[Job], found: Sequence[bytes]) -> bytes:
    encoding = parsed.request.encoding_format
    return to_json(vectors.embeddings_object(parsed.request.model, ended, found, encoding=encoding))


def _parse(
    raw: bytes | bytearray, tokenizer: Tokenizer | None, most_tokens: int | None, takes: Takes
) -> ParsedEmbeddings:
    body = parse_object(raw)
    request, generation = requests.validate(body, takes)
    if tokenizer is None:
        raise UnavailableError("The tokenizer is not loaded yet.")
    counter = PromptCounter(tokenizer)
    texts = [_counted(request, each, counter, most_tokens) for each in enumerate(generation.inputs)]
    return ParsedEmbeddings(request, generation, texts, meaning_sha256(Endpoint.EMBEDDINGS, body))


def _counted(
    request: EmbeddingsRequest, numbered: tuple[int, str], counter: PromptCounter, most_tokens: int | None
) -> NewText:
    index, canonical = numbered
    param = requests.name_of_input(request, index)
    try:
        return NewText(canonical, counter.count_prompt(canonical, limit=most_tokens))
    except PromptTooLongError as error:
        message = too_long_message(
            limit=error.limit, prompt_tokens=error.at_least, max_tokens=0, is_least=True
        )
        raise ContextLengthExceededError(f"{param}: {message}", param=param) from None
    except ChatTemplateError as error:
        raise InvalidRequestError(f"{param}: {error.message}", param=param) from None


def _submit(session: Session, *, parsed: ParsedEmbeddings, by: Submitter, served: str) -> list[Job]:
    registered = registry.registered_capacities(session)
    asked = parsed.generation
    if asked.model not in registered and asked.model != served:
        offer = read_offer(session, served=served, tenant_id=by.tenant_id)
        requests.check_adapter(offer.find(asked.model).adapter)
    spec = JobSpec(
        text=parsed.texts[0],
        task=EMBED_TASK,
        model=asked.model,
        max_tokens=asked.tokens_within(1),
        lane=WAITED_FOR.lane,
        sampling=asked.sampling,
        window=WAITED_FOR.window,
        is_whole=asked.is_whole,
    )
    jobs = submission.submit(session, inputs_of(spec, parsed.texts), by)
    for index, job in enumerate(jobs):
        if job.error is not None:
            param = requests.name_of_input(parsed.request, index)
            capacities = registered.get(asked.model) or [by.default_capacity]
            message = too_long_message(
                limit=max(min(each.max_input_len, each.max_seq_len - 1) for each in capacities),
                prompt_tokens=job.prompt_tokens or 0,
                max_tokens=0,
            )
            raise ContextLengthExceededError(f"{param}: {message}", param=param)
    return jobs
