"""Interactive requests: parses and counts them, submits them to the interactive lane, follows them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.completions.placement import WAITED_FOR, Placement, meaning_sha256
from api.completions.requests import GenerateRequest
from api.http.body import parse, parse_object
from api.runtime.api_keys import Caller
from api.runtime.services import Services
from jobs import lifecycle, queries, submission
from jobs.adapters.offers import read_offer
from jobs.answers import log_probs
from jobs.engines import registry
from jobs.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    PromptTooLongError,
    UnavailableError,
)
from jobs.live_output import Delta, OutputPiece
from jobs.models import Address, Job
from jobs.prompts import openai
from jobs.prompts.abilities import Takes
from jobs.prompts.chat_template import ChatTemplateError, ToolsNotTakenError
from jobs.prompts.counter import PromptCounter
from jobs.prompts.openai import Generation
from jobs.prompts.store import CountedPrompt, NewText
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tools import frames
from jobs.prompts.tools.calls import read_calls
from jobs.states.batch import Endpoint
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec, choices_of
from jobs.submission.repetition import NO_REPETITION, Repetition

_POLL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that was parsed.

    Attributes:
        generation: what it asks the model to generate.
        text: its prompt, counted unless it is long and nobody waits for the answer.
        guide: what its answer must be; None: any text will do.
        placement: of its job.
        request_sha256: of its meaning; empty: it cannot be repeated.
    """

    generation: Generation
    text: NewText
    guide: NewText | None = None
    placement: Placement = WAITED_FOR
    request_sha256: bytes = b""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.text.counted.num_tokens if self.text.counted else 0


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of an interactive job.

    Attributes:
        job: its row.
        output: whole or partial; calls are framed within its text.
        reasoning_tokens: how many of its tokens were thinking.
    """

    job: Job
    output: OutputPiece
    reasoning_tokens: int


async def parse_request(services: Services, endpoint: Endpoint, raw: bytes | bytearray) -> ParsedRequest:
    """Parse the request in this body and count its prompt.

    Raises:
        InvalidRequestError: a field is invalid; `param` names it.
        ModelNotFoundError: no engine serves its model.
        UnavailableError: the tokenizer is not loaded yet; try again.
    """
    most, takes = await longest_prompt(services, len(raw)), await services.engines.get()
    return await services.compute_apart(
        len(raw), _parse_raw, endpoint, raw, services.tokenizer.current, most, takes
    )


async def parse_plain_request(services: Services, raw: bytes | bytearray, *, stream: bool) -> ParsedRequest:
    """Parse a plain request for the served model; greedy unless it sets a temperature."""
    most, takes = await longest_prompt(services, len(raw)), await services.engines.get()
    given = {"temperature": 0, "model": services.settings.engine.model, "stream": stream}
    return await services.compute_apart(
        len(raw), _parse_plain, raw, given, services.tokenizer.current, most, takes
    )


async def submit(
    services: Services, parsed: ParsedRequest, *, caller: Caller, repetition: Repetition = NO_REPETITION
) -> tuple[Job, bool]:
    """Submit a request of one choice, as `submit_choices` does."""
    (job,), is_repeated = await submit_choices(services, parsed, caller=caller, repetition=repetition)
    return job, is_repeated


async def submit_choices(
    services: Services, parsed: ParsedRequest, *, caller: Caller, repetition: Repetition = NO_REPETITION
) -> tuple[list[Job], bool]:
    """Submit the request as a job for each choice, or find those that an earlier copy of it submitted.

    Returns:
        The jobs, and True if an earlier request made them.

    Raises:
        IdempotencyConflictError: the key was used for another request.
        LimitError: the tenant's quota is full.
        ModelNotFoundError: no engine serves its model, or it has no such adapter.
        UnsupportedParameterError: its engines take no adapters, or not this one.
        AdapterForbiddenError: the tenant may not name this adapter.
        ContextLengthExceededError: it can never fit; nothing was stored.
    """
    by = services.submitter(caller)
    make = partial(
        _submit,
        parsed=parsed,
        by=by,
        default_max_tokens=services.settings.batches.default_max_tokens,
        served=services.settings.engine.model,
    )
    jobs, is_repeated = await services.submit(by, repetition.run, make, tenant_id=caller.tenant_id)
    if not is_repeated:
        services.doorbell.ring_for(jobs)
    return jobs, is_repeated


async def follow(
    services: Services, job_id: UUID, *, tenant_id: UUID
) -> AsyncGenerator[OutputPiece | Completion, None]:
    """Yield new output in order, each character once, then the end of the job.

    Text that Redis did not deliver comes just before the end.
    """
    num_sent = num_scored = 0
    row = asyncio.create_task(until_ended(services, job_id, tenant_id=tenant_id))
    try:
        async with aclosing(services.live.deltas(job_id)) as deltas:
            while not row.done():
                delta = await _next(deltas, row)
                if delta is None:
                    break
                new = delta.after(num_sent, num_scored)
                if not new.is_empty:
                    num_sent += new.num_chars
                    num_scored = new.log_probs.end if new.log_probs else num_scored
                    yield new
                if delta.is_last:
                    found = await services.poller.now(job_id, tenant_id=tenant_id)
                    if found is None or found.finalized_at is not None:
                        break
        ended = await row
        rest = ended.output.after(num_sent, num_scored)
        if not rest.is_empty:
            yield rest
        yield ended
    finally:
        row.cancel()


async def cancel(services: Services, job_ids: Sequence[UUID], *, tenant_id: UUID) -> None:
    """Cancel the jobs of a caller that left, all or none; their blocks are free within a second."""

    def end(session: Session) -> None:
        for job_id in sorted(job_ids):
            lifecycle.cancel_where(session, [Job.id == job_id], tenant_id=tenant_id)

    await services.transactions.run(end, tenant_ids=[tenant_id])  # the request's own task may have ended


async def _next(deltas: AsyncIterator[Delta], row: "asyncio.Task[Completion]") -> Delta | None:
    """Wait for the next delta.

    Returns:
        None: the row shows that the job has ended.
    """
    delta = asyncio.ensure_future(anext(deltas))
    try:
        await asyncio.wait({delta, row}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not delta.done():
            delta.cancel()
            await asyncio.gather(delta, return_exceptions=True)
    return delta.result() if not delta.cancelled() else None


async def until_ended(services: Services, job_id: UUID, *, tenant_id: UUID) -> Completion:
    """Wait for the job to end.

    Raises:
        UnavailableError: its row was deleted, the server is stopping, or the database does not answer.
    """
    job = await until_final(services, job_id, tenant_id=tenant_id)
    read = partial(queries.get_result, job_id=job_id)
    result = await services.transactions.run(read, tenant_ids=[tenant_id])
    if result is None:
        return Completion(job, OutputPiece("", ""), 0)
    scored = None if result.log_probs is None else log_probs.read(result.log_probs)
    visible = frames.framed(result.output, read_calls(result.tool_calls))
    return Completion(job, OutputPiece(result.reasoning or "", visible, scored), result.reasoning_tokens)


async def until_final(services: Services, job_id: UUID, *, tenant_id: UUID) -> Job:
    """Wait for the job to end, and read nothing of what it generated.

    Raises:
        UnavailableError: as `until_ended`.
    """
    job: Job | None = None
    while job is None or job.finalized_at is None:
        if services.poller.is_released:
            raise UnavailableError("The server is stopping; try again.")
        job = await services.poller.until_ended(job_id, tenant_id=tenant_id, seconds=_POLL_SECONDS)
        if job is None:
            raise UnavailableError("The request's job was deleted.")
    return job


async def longest_prompt(services: Services, num_bytes: int) -> int | None:
    """Find the longest prompt, in tokens, that an engine takes; counting stops there.

    Returns:
        None: the body is short enough to be counted whole.
    """
    default_capacity = registry.configured_capacity(services.settings.engine)
    if num_bytes <= default_capacity.max_input_len:
        return None
    registered = await services.transact(registry.registered_capacities)
    return max(each.max_input_len for each in [default_capacity, *chain(*registered.values())])


def _parse_raw(
    endpoint: Endpoint,
    raw: bytes | bytearray,
    tokenizer: Tokenizer | None,
    most_tokens: int | None,
    takes: Takes,
) -> ParsedRequest:
    body = parse_object(raw)
    return _parse_request(endpoint, body, tokenizer, most_tokens, takes, route=endpoint)


def _parse_plain(
    raw: bytes | bytearray,
    given: dict[str, Any],
    tokenizer: Tokenizer | None,
    most_tokens: int | None,
    takes: Takes,
) -> ParsedRequest:
    asked = parse(GenerateRequest, raw).model_dump(exclude_none=True)
    return _parse_request(Endpoint.TEXT, given | asked, tokenizer, most_tokens, takes, route="/generate")


def _parse_request(
    endpoint: Endpoint,
    body: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    most_tokens: int | None,
    takes: Takes,
    *,
    route: str,
) -> ParsedRequest:
    generation = openai.validate_request(endpoint, body, takes)
    counted = count_waiting(generation, tokenizer, most_tokens)
    guide = None if (form := generation.form.written()) is None else NewText(form)
    text, meaning = NewText(generation.canonical, counted), meaning_sha256(route, body)
    return ParsedRequest(generation, text, guide, request_sha256=meaning)


def count_waiting(
    generation: Generation, tokenizer: Tokenizer | None, most_tokens: int | None, *, param: str = "messages"
) -> CountedPrompt:
    """Count the prompt of a request whose caller waits; `param` is the field that has it.

    Raises:
        ContextLengthExceededError: the prompt has more than `most_tokens`.
        InvalidRequestError: the model's chat template refuses it.
        UnavailableError: the tokenizer is not loaded yet; try again.
    """
    if tokenizer is None:
        raise UnavailableError("The tokenizer is not loaded yet.")
    try:
        return PromptCounter(tokenizer).count_prompt(generation.canonical, limit=most_tokens)
    except PromptTooLongError as error:
        message = openai.too_long_message(
            limit=error.limit,
            prompt_tokens=error.at_least,
            max_tokens=generation.max_tokens or 1,
            is_least=True,
        )
        raise ContextLengthExceededError(message, param=param, details=error.details) from None
    except ToolsNotTakenError as error:
        raise error.refusal(generation.model) from None
    except ChatTemplateError as error:
        raise InvalidRequestError(error.message, param=error.param or param) from None


def _submit(
    session: Session,
    *,
    parsed: ParsedRequest,
    by: Submitter,
    default_max_tokens: int,
    served: str,
) -> list[Job]:
    registered = registry.registered_capacities(session)
    named = parsed.generation.model
    if named in registered or named == served:
        model, adapter = Address(named)
    else:
        model, adapter = read_offer(session, served=served, tenant_id=by.tenant_id).find(named)
    capacities = registered.get(model) or [by.default_capacity]
    room = max(min(each.max_seq_len, each.max_tokens_in_pool) for each in capacities) - parsed.prompt_tokens
    max_tokens = parsed.generation.tokens_within(max(1, min(default_max_tokens, room)))
    placed = parsed.placement
    spec = JobSpec(
        text=parsed.text,
        task=placed.task,
        model=model,
        adapter=adapter,
        max_tokens=max_tokens,
        lane=placed.lane,
        rank=placed.rank,
        sampling=parsed.generation.sampling,
        metadata=placed.metadata,
        webhook_url=placed.callback.url,
        webhook_secret=placed.callback.secret,
        window=placed.window,
        guide=parsed.guide,
        is_whole=parsed.generation.is_whole,
        response=placed.response,
    )
    jobs = submission.submit(session, choices_of(spec, parsed.generation.num_choices), by)
    if jobs[0].error is not None:
        limit = max(each.max_seq_len for each in capacities)
        message = openai.too_long_message(
            limit=limit, prompt_tokens=parsed.prompt_tokens, max_tokens=max_tokens
        )
        raise ContextLengthExceededError(message, param=placed.prompt_param)
    return jobs
