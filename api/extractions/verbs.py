"""What callers do with extractions, over HTTP and in the console: submit, estimate, cancel."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.answers.estimates import Reading, estimate_reading
from api.answers.verbs import specification
from api.extractions.requests import ExtractionEstimateRequest, ExtractionOptions, ExtractionRequest
from api.http.idempotency import IdempotencyHeaders
from api.runtime.services import Services
from api.summaries.requests import checked_template
from api.summaries.submission import Submission, cancel_rows, request_kind, within_storage
from api.summaries.verbs import resolve_model
from jobs import extractions
from jobs.engines.capacity import Capacity
from jobs.extractions import queries
from jobs.extractions.fields import Field, definitions, read_fields, reply_guide
from jobs.extractions.prompts import check_extraction_variables, extraction_overheads
from jobs.extractions.shape import default_length, find_extraction_sizes
from jobs.extractions.templates import EXTRACTION_PLACEHOLDERS, ExtractionWording
from jobs.extractions.views import ExtractionObject
from jobs.models import JsonObject, Summary
from jobs.prompts import guides
from jobs.prompts.counter import PromptCounter
from jobs.states.summary import JoinRule, Purpose
from jobs.summaries import tree
from jobs.summaries.tree import Sizes


async def submit(
    services: Services, asked: ExtractionRequest, *, tenant_id: UUID, idempotency: IdempotencyHeaders
) -> tuple[list[ExtractionObject], bool]:
    """Extract the fields from each document.

    Returns:
        The extractions, and True if an earlier request with the same key made them.

    Raises:
        InvalidRequestError: the tenant has no such document, the schema cannot be used, or an option is
            invalid.
        ModelNotFoundError: no engine serves the model.
        IdempotencyConflictError: the key was used for another request.
        LimitError: the tenant may not store what is asked.
    """
    model = await resolve_model(services, asked.model)
    fields = await _checked_fields(services, asked)
    own = checked_template(asked.template, EXTRACTION_PLACEHOLDERS)
    spec = specification(asked, services, model, length=_length(asked, fields), own=own)

    def create(session: Session) -> list[Summary]:
        return extractions.create(
            session, spec, schema=asked.fields_schema, fields=fields, tenant_id=tenant_id
        )

    bounded = within_storage(create, services, tenant_id=tenant_id)
    submission = Submission(asked, spec.webhook_url, bounded, queries.describe, _EXTRACTIONS, {"template"})
    return await submission.store(services, tenant_id=tenant_id, idempotency=idempotency)


async def estimate(services: Services, asked: ExtractionEstimateRequest, *, tenant_id: UUID) -> JsonObject:
    """Estimate extractions, in one of the tenant's places for that; raise as `estimate_reading` does."""
    model = await resolve_model(services, asked.model)
    async with services.cpu.estimate(tenant_id):
        fields = await _checked_fields(services, asked)
        own = checked_template(asked.template, EXTRACTION_PLACEHOLDERS)

        def sizes(capacities: Sequence[Capacity], counter: PromptCounter) -> Sizes:
            variables = asked.chat_template_kwargs or {}
            wording = ExtractionWording(fields, definitions(asked.fields_schema), own)
            overheads = extraction_overheads(wording, counter, variables=variables)
            length = _length(asked, fields)
            return find_extraction_sizes(
                capacities, overheads, length=length, chunk_tokens=asked.chunk_tokens
            )

        reading = Reading(asked, model, sizes, tree.build_apart)
        _, described = await estimate_reading(services, reading, tenant_id=tenant_id)
        return {"object": "extraction.estimate", **described}


async def cancel(services: Services, extraction_id: UUID, *, tenant_id: UUID) -> None:
    """Cancel an extraction; see `cancel_rows`."""
    await cancel_rows(services, extraction_id, tenant_id=tenant_id, purpose=Purpose.EXTRACTION)


async def _checked_fields(services: Services, asked: ExtractionOptions) -> list[Field]:
    """Read the fields; try the caller's template variables as soon as the tokenizer is loaded."""
    fields = await services.compute(len(str(asked.fields_schema)), _read, asked)
    tokenizer = services.tokenizer.current
    if asked.chat_template_kwargs and tokenizer is not None:
        counter = PromptCounter(tokenizer)
        await services.compute(0, check_extraction_variables, asked.chat_template_kwargs, counter)
    return fields


def _read(asked: ExtractionOptions) -> list[Field]:
    rules = {name: JoinRule(rule) for name, rule in asked.joins.items()}
    guides.check([("schema", guides.json_guide(asked.fields_schema, param="schema"))])
    fields = read_fields(asked.fields_schema, rules)
    guides.check([("schema", reply_guide(asked.fields_schema, fields))])  # one that no reply could follow
    return fields


def _length(asked: ExtractionOptions, fields: Sequence[Field]) -> int:
    return asked.length or default_length(len(fields))


_EXTRACTIONS: Final = request_kind("extractions")
