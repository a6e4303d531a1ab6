"""What callers do with answers, over HTTP and in the console: submit, estimate, cancel."""

from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.answers.estimates import check_answer_options, estimate_answers, own_template
from api.answers.requests import AnswersEstimateRequest, AnswersRequest, DocumentFields
from api.http.callbacks import check_callback
from api.http.idempotency import IdempotencyHeaders
from api.http.identifiers import parse_documents
from api.runtime.services import Services
from api.summaries.submission import Submission, cancel_rows, request_kind, within_storage
from api.summaries.verbs import resolve_model
from jobs import questions
from jobs.models import JsonObject, Summary
from jobs.questions import DocumentsSpec, queries
from jobs.questions.views import AnswersObject
from jobs.states.summary import Purpose
from jobs.summaries.own_templates import OwnTemplate
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
        LimitError: the tenant may not store what is asked.
    """
    model = await resolve_model(services, asked.model)
    spec = specification(asked, services, model, length=asked.length, own=own_template(asked))
    await check_answer_options(services, asked)

    def create(session: Session) -> list[Summary]:
        return questions.create(session, spec, questions=asked.questions, tenant_id=tenant_id)

    bounded = within_storage(create, services, tenant_id=tenant_id)
    submission = Submission(asked, spec.webhook_url, bounded, queries.describe, _ANSWERS, {"template"})
    return await submission.store(services, tenant_id=tenant_id, idempotency=idempotency)


async def estimate(services: Services, asked: AnswersEstimateRequest, *, tenant_id: UUID) -> JsonObject:
    """Estimate answers, in one of the tenant's places for that; raise as `estimate_answers` does."""
    model = await resolve_model(services, asked.model)
    async with services.cpu.estimate(tenant_id):
        return await estimate_answers(services, asked, tenant_id=tenant_id, model=model)


async def cancel(services: Services, answers_id: UUID, *, tenant_id: UUID) -> None:
    """Cancel answers; see `cancel_rows`."""
    await cancel_rows(services, answers_id, tenant_id=tenant_id, purpose=Purpose.ANSWERS)


def specification(
    asked: DocumentFields, services: Services, model: str, *, length: int, own: OwnTemplate | None
) -> DocumentsSpec:
    """Return the request as it is stored, with the caller's own template.

    Raises:
        InvalidRequestError: it names no document, one twice, or a destination that is not allowed.
    """
    callback = check_callback(asked.webhook_url, asked.webhook_secret, services.settings.webhooks)
    return DocumentsSpec(
        document_ids=parse_documents(asked.documents),
        model=model,
        length=length,
        chat_template_kwargs=asked.chat_template_kwargs,
        template=own,
        chunk_tokens=asked.chunk_tokens,
        rank=PRIORITIES[asked.priority],
        custom_id=asked.custom_id,
        metadata=asked.metadata,
        webhook_url=callback.url,
        webhook_secret=callback.secret,
        window=WINDOWS[asked.completion_window] if asked.completion_window else None,
    )


_ANSWERS: Final = request_kind("answers")
