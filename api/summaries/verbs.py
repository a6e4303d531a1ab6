"""What callers do with summaries, over HTTP and in the console: submit, estimate, cancel."""

import asyncio
from contextlib import aclosing, suppress
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.http.callbacks import check_callback
from api.http.idempotency import IdempotencyHeaders
from api.http.identifiers import parse_documents
from api.runtime.services import Services
from api.summaries.estimates import check_options, estimate_summaries, prompt_options
from api.summaries.requests import SummaryEstimateRequest, SummaryRequest
from api.summaries.submission import Submission, cancel_rows, request_kind, within_storage
from jobs import summaries
from jobs.engines import registry
from jobs.errors import InvalidRequestError, ModelNotFoundError
from jobs.models import JsonObject, Summary
from jobs.states.summary import TERMINAL, OnGap, Purpose, Style
from jobs.summaries import SummarySpec, queries
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.views import SummaryObject
from jobs.validation import WINDOWS
from jobs.views import PRIORITIES


async def submit(
    services: Services, asked: SummaryRequest, *, tenant_id: UUID, idempotency: IdempotencyHeaders
) -> tuple[list[SummaryObject], bool]:
    """Submit summaries of each document, or one of all with `combine`.

    Returns:
        The summaries, and True if an earlier request with the same key made them.

    Raises:
        InvalidRequestError: the tenant has no such document, or an option is invalid.
        ModelNotFoundError: no engine serves the model.
        IdempotencyConflictError: the key was used for another request.
        LimitError: the tenant may not store its own template.
    """
    if asked.urls:
        message = "This server does not fetch URLs; upload the documents instead."
        raise InvalidRequestError(message, param="urls")
    model = await resolve_model(services, asked.model)
    options = prompt_options(asked)
    spec = _specification(asked, services, model, own=options.own)
    await check_options(services, options)

    def create(session: Session) -> list[Summary]:
        return summaries.create(session, spec, tenant_id=tenant_id)

    bounded = create if spec.template is None else within_storage(create, services, tenant_id=tenant_id)
    later = {"chat_template_kwargs", "template"}
    submission = Submission(asked, spec.webhook_url, bounded, queries.describe_each, _SUMMARIES, later)
    return await submission.store(services, tenant_id=tenant_id, idempotency=idempotency)


async def estimate(services: Services, asked: SummaryEstimateRequest, *, tenant_id: UUID) -> JsonObject:
    """Estimate summaries, in one of the tenant's places for that; raise as `estimate_summaries` does."""
    model = await resolve_model(services, asked.model)
    async with services.cpu.estimate(tenant_id):
        return await estimate_summaries(services, asked, tenant_id=tenant_id, model=model)


async def cancel(services: Services, summary_id: UUID, *, tenant_id: UUID) -> None:
    """Cancel a summary; see `cancel_rows`."""
    await cancel_rows(services, summary_id, tenant_id=tenant_id, purpose=Purpose.SUMMARY)


async def until_ended(services: Services, summary_id: UUID, *, seconds: float) -> None:
    """Wait until a summary, or other tree, ends or is deleted, or the time is up."""
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(seconds),
            aclosing(services.summary_changes.changes(summary_id)) as changes,
        ):
            async for seen in changes:
                if seen.state in TERMINAL:
                    return


async def resolve_model(services: Services, asked: str | None) -> str:
    """Resolve the requested model; the default is the served one.

    Raises:
        ModelNotFoundError: no engine serves it.
    """
    served = services.settings.engine.model
    if asked is None or asked == served:
        return served
    if asked not in await services.transact(registry.registered_capacities):
        raise ModelNotFoundError(param="model")
    return asked


def _specification(
    asked: SummaryRequest, services: Services, model: str, *, own: OwnTemplate | None
) -> SummarySpec:
    callback = check_callback(asked.webhook_url, asked.webhook_secret, services.settings.webhooks)
    return SummarySpec(
        document_ids=parse_documents(asked.documents),
        model=model,
        combine=asked.combine,
        style=Style(asked.style),
        length=asked.length,
        language=asked.language,
        instructions=asked.instructions,
        focus=asked.focus,
        chat_template_kwargs=asked.chat_template_kwargs,
        template=own,
        on_gap=OnGap(asked.on_gap),
        chunk_tokens=asked.chunk_tokens,
        overlap_tokens=asked.overlap_tokens,
        rank=PRIORITIES[asked.priority],
        custom_id=asked.custom_id,
        metadata=asked.metadata,
        webhook_url=callback.url,
        webhook_secret=callback.secret,
        window=WINDOWS[asked.completion_window] if asked.completion_window else None,
    )


_SUMMARIES: Final = request_kind("summaries")
