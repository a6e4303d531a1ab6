"""What callers do with summaries, over HTTP and in the console: submit, estimate, cancel."""

import asyncio
import json
from contextlib import aclosing, suppress
from functools import partial
from hashlib import sha256
from uuid import UUID

from sqlalchemy.orm import Session

from api.http.callbacks import check_callback
from api.http.idempotency import IdempotencyHeaders
from api.http.identifiers import parse_documents
from api.runtime.services import Services
from api.summaries.estimates import check_options, estimate_summaries, prompt_options
from api.summaries.requests import SummaryEstimateRequest, SummaryRequest
from jobs import summaries
from jobs.doorbell import SERVICE
from jobs.engines import registry
from jobs.errors import InvalidRequestError, ModelNotFoundError
from jobs.models import JsonObject, Summary
from jobs.states.summary import TERMINAL, OnGap, Style
from jobs.summaries import SummarySpec, queries
from jobs.summaries.views import SummaryObject
from jobs.tenants.idempotency import RequestKind
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
    """
    if asked.urls:
        message = "This server does not fetch URLs; upload the documents instead."
        raise InvalidRequestError(message, param="urls")
    model = await resolve_model(services, asked.model)
    spec = _specification(asked, services, model)
    await check_options(services, prompt_options(asked))
    await services.admit_callback(spec.webhook_url, tenant_id=tenant_id)
    # Left out if empty: releases before this field hashed the same request without it.
    unset = None if asked.chat_template_kwargs else {"chat_template_kwargs"}
    fields = asked.model_dump(mode="json", exclude=unset)
    digest = sha256(json.dumps(fields, sort_keys=True).encode()).digest()

    def create(session: Session) -> tuple[list[SummaryObject], bool]:
        make = partial(summaries.create, spec=spec, tenant_id=tenant_id)
        made, replayed = idempotency.run(session, digest, make, tenant_id=tenant_id, kind=_SUMMARIES)
        return queries.describe(session, made), replayed

    found = await services.transact(create)
    services.doorbell.ring(SERVICE)
    return found


async def estimate(services: Services, asked: SummaryEstimateRequest, *, tenant_id: UUID) -> JsonObject:
    """Estimate summaries, in one of the tenant's places for that; raise as `estimate_summaries` does."""
    model = await resolve_model(services, asked.model)
    async with services.cpu.estimate(tenant_id):
        return await estimate_summaries(services, asked, tenant_id=tenant_id, model=model)


async def cancel(services: Services, summary_id: UUID, *, tenant_id: UUID) -> None:
    """Cancel a summary, and some of its jobs at once; a service worker stops the others.

    Raises:
        NotFoundError: the tenant has no such summary.
    """
    await services.transact(summaries.cancel, summary_id=summary_id, tenant_id=tenant_id)
    # In its own transaction, because it must lock the rows of jobs first; a service worker repeats it.
    await services.transact(summaries.stop_jobs, summary_id=summary_id, tenant_id=tenant_id)
    services.doorbell.ring(SERVICE)


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


def _specification(asked: SummaryRequest, services: Services, model: str) -> SummarySpec:
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


def find_recorded(session: Session, recorded: UUID | JsonObject) -> list[Summary] | None:
    """Find the summaries, or answers, of an earlier request.

    Returns:
        None: at least one no longer exists, so all are made again.
    """
    listed = recorded.get("summary_ids") if isinstance(recorded, dict) else None
    if not isinstance(listed, list):
        return None
    found = [session.get(Summary, UUID(hex=each)) for each in listed]
    kept = [each for each in found if each is not None]
    return kept if len(kept) == len(found) else None


def ids_to_record(made: list[Summary]) -> JsonObject:
    """Return what `find_recorded` finds them by."""
    return {"summary_ids": [each.id.hex for each in made]}


_SUMMARIES: RequestKind[list[Summary]] = RequestKind("summaries", record=ids_to_record, find=find_recorded)
