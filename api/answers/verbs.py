"""What callers do with answers, over HTTP and in the console: submit, estimate, cancel."""

import json
from functools import partial
from hashlib import sha256
from uuid import UUID

from sqlalchemy.orm import Session

from api.answers.estimates import check_answer_options, estimate_answers
from api.answers.requests import AnswersEstimateRequest, AnswersRequest
from api.http.callbacks import check_callback
from api.http.idempotency import IdempotencyHeaders
from api.http.identifiers import parse_documents
from api.runtime.services import Services
from api.summaries.verbs import find_recorded, ids_to_record, resolve_model
from jobs import questions, summaries
from jobs.doorbell import SERVICE
from jobs.models import JsonObject, Summary
from jobs.questions import AnswersSpec, queries
from jobs.questions.views import AnswersObject
from jobs.tenants.idempotency import RequestKind
from jobs.validation import WINDOWS
from jobs.views import PRIORITIES


async def submit(
    services: Services, asked: AnswersRequest, *, tenant_id: UUID, idempotency: IdempotencyHeaders
) -> tuple[list[AnswersObject], bool]:
    """Ask each document the questions.

    Returns:
        The answers of each document, and True if an earlier request with the same key made them.

    Raises:
        InvalidRequestError: the tenant has no such document, or an option is invalid.
        ModelNotFoundError: no engine serves the model.
        IdempotencyConflictError: the key was used for another request.
    """
    model = await resolve_model(services, asked.model)
    spec = _specification(asked, services, model)
    await check_answer_options(services, asked)
    await services.admit_callback(spec.webhook_url, tenant_id=tenant_id)
    digest = sha256(json.dumps(asked.model_dump(mode="json"), sort_keys=True).encode()).digest()

    def create(session: Session) -> tuple[list[AnswersObject], bool]:
        make = partial(questions.create, spec=spec, tenant_id=tenant_id)
        made, replayed = idempotency.run(session, digest, make, tenant_id=tenant_id, kind=_ANSWERS)
        return queries.describe(session, made), replayed

    found = await services.transact(create)
    services.doorbell.ring(SERVICE)
    return found


async def estimate(services: Services, asked: AnswersEstimateRequest, *, tenant_id: UUID) -> JsonObject:
    """Estimate answers, in one of the tenant's places for that; raise as `estimate_answers` does."""
    model = await resolve_model(services, asked.model)
    async with services.cpu.estimate(tenant_id):
        return await estimate_answers(services, asked, tenant_id=tenant_id, model=model)


async def cancel(services: Services, answers_id: UUID, *, tenant_id: UUID) -> None:
    """Cancel answers, and some of their jobs at once; a service worker stops the others.

    Raises:
        NotFoundError: the tenant has none of this id.
    """
    await services.transact(questions.cancel, answers_id=answers_id, tenant_id=tenant_id)
    # In its own transaction, because it must lock the rows of jobs first; a service worker repeats it.
    await services.transact(summaries.stop_jobs, summary_id=answers_id, tenant_id=tenant_id)
    services.doorbell.ring(SERVICE)


def _specification(asked: AnswersRequest, services: Services, model: str) -> AnswersSpec:
    callback = check_callback(asked.webhook_url, asked.webhook_secret, services.settings.webhooks)
    return AnswersSpec(
        document_ids=parse_documents(asked.documents),
        questions=asked.questions,
        model=model,
        length=asked.length,
        chat_template_kwargs=asked.chat_template_kwargs,
        chunk_tokens=asked.chunk_tokens,
        rank=PRIORITIES[asked.priority],
        custom_id=asked.custom_id,
        metadata=asked.metadata,
        webhook_url=callback.url,
        webhook_secret=callback.secret,
        window=WINDOWS[asked.completion_window] if asked.completion_window else None,
    )


_ANSWERS: RequestKind[list[Summary]] = RequestKind("answers", record=ids_to_record, find=find_recorded)
