"""What callers do with answers, over HTTP and in the console: submit, estimate, cancel."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from api.answers.estimates import check_answer_options, estimate_answers
from api.answers.requests import AnswersEstimateRequest, AnswersRequest, DocumentFields
from api.http.callbacks import check_callback
from api.http.idempotency import IdempotencyHeaders
from api.http.identifiers import parse_documents
from api.runtime.services import Services
from api.summaries.verbs import find_recorded, ids_to_record, resolve_model
from jobs import questions, summaries
from jobs.doorbell import SERVICE
from jobs.models import JsonObject, Summary
from jobs.questions import DocumentsSpec, queries
from jobs.questions.views import AnswersObject
from jobs.tenants.idempotency import RequestKind
from jobs.validation import WINDOWS
from jobs.views import PRIORITIES

T = TypeVar("T")


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
    spec = specification(asked, services, model, length=asked.length)
    await check_answer_options(services, asked)

    def create(session: Session) -> list[Summary]:
        return questions.create(session, spec, questions=asked.questions, tenant_id=tenant_id)

    submission = Submission(asked, spec, create, queries.describe, _ANSWERS)
    return await submission.store(services, tenant_id=tenant_id, idempotency=idempotency)


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


@dataclass(frozen=True, slots=True)
class Submission(Generic[T]):
    """A checked request about documents.

    Attributes:
        asked: by the caller.
        create: makes a row for each document.
        describe: returns the public shape of rows.
        kind: of the request, for its idempotency key.
    """

    asked: DocumentFields
    spec: DocumentsSpec
    create: Callable[[Session], list[Summary]]
    describe: Callable[[Session, list[Summary]], list[T]]
    kind: RequestKind[list[Summary]]

    async def store(
        self, services: Services, *, tenant_id: UUID, idempotency: IdempotencyHeaders
    ) -> tuple[list[T], bool]:
        """Store it, and wake those who plan it; for the result see `submit`."""
        await services.admit_callback(self.spec.webhook_url, tenant_id=tenant_id)
        digest = sha256(json.dumps(self.asked.model_dump(mode="json"), sort_keys=True).encode()).digest()

        def run(session: Session) -> tuple[list[T], bool]:
            made, replayed = idempotency.run(
                session, digest, self.create, tenant_id=tenant_id, kind=self.kind
            )
            return self.describe(session, made), replayed

        found = await services.transact(run)
        services.doorbell.ring(SERVICE)
        return found


def specification(asked: DocumentFields, services: Services, model: str, *, length: int) -> DocumentsSpec:
    """Return the request as it is stored.

    Raises:
        InvalidRequestError: it names no document, one twice, or a destination that is not allowed.
    """
    callback = check_callback(asked.webhook_url, asked.webhook_secret, services.settings.webhooks)
    return DocumentsSpec(
        document_ids=parse_documents(asked.documents),
        model=model,
        length=length,
        chat_template_kwargs=asked.chat_template_kwargs,
        chunk_tokens=asked.chunk_tokens,
        rank=PRIORITIES[asked.priority],
        custom_id=asked.custom_id,
        metadata=asked.metadata,
        webhook_url=callback.url,
        webhook_secret=callback.secret,
        window=WINDOWS[asked.completion_window] if asked.completion_window else None,
    )


def request_kind(name: str) -> RequestKind[list[Summary]]:
    """Return the kind of request whose idempotency keys bear this name."""
    return RequestKind(name, record=ids_to_record, find=find_recorded)


_ANSWERS: Final = request_kind("answers")
