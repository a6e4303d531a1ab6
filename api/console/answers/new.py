"""New questions: how the form of documents asks them, what that takes, and earlier ones asked again."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.answers import verbs
from api.answers.requests import AnswersEstimateRequest, AnswersRequest
from api.console.documents.drafts import MAX_DOCUMENTS, DocumentDraft, parse_fields, validated
from api.console.subjects.kinds import SUBJECTS
from api.console.subjects.new import Earlier, NewSubject, new_routes
from api.http.idempotency import IdempotencyHeaders
from api.runtime.services import Services
from jobs import questions
from jobs.models import JsonObject
from jobs.questions import queries, trees
from jobs.questions.forest import DEFAULT_LENGTH
from jobs.states.summary import Purpose
from jobs.views import PRIORITY_NAMES

_NUMBERS: Final = ("length", "chunk_tokens")
_TEXTS: Final = ("priority", "custom_id")


async def estimate(
    services: Services, draft: DocumentDraft, form: Mapping[str, str], *, tenant_id: UUID
) -> JsonObject | None:
    """Estimate once there is a question; raise as `verbs.estimate` does."""
    draft.require_text()
    given = _parse(form)
    if not given["questions"]:
        return None
    asked = validated(AnswersEstimateRequest, {"documents": draft.usable} | given)
    return await verbs.estimate(services, asked, tenant_id=tenant_id)


async def submit(
    services: Services,
    draft: DocumentDraft,
    form: Mapping[str, str],
    *,
    tenant_id: UUID,
    idempotency: IdempotencyHeaders,
) -> list[str]:
    """Ask the questions; raise as `verbs.submit` does."""
    draft.require_text()
    asked = validated(AnswersRequest, {"documents": draft.usable} | _parse(form))
    made, _ = await verbs.submit(services, asked, tenant_id=tenant_id, idempotency=idempotency)
    return [each["id"] for each in made]


def _parse(form: Mapping[str, str]) -> dict[str, object]:
    """Read the fields of a form: a question a line; empty fields are not chosen.

    Raises:
        InvalidRequestError: a field that is a number has none.
    """
    listed = [each.strip() for each in form.get("questions", "").splitlines()]
    chosen = parse_fields(form, numbers=_NUMBERS, texts=_TEXTS)
    return chosen | {"questions": [each for each in listed if each]}


def read_earlier(session: Session, answers_id: UUID, *, tenant_id: UUID) -> Earlier:
    """Read earlier answers as the fields of a form, and the documents that were asked together.

    Raises:
        NotFoundError: the tenant has no such answers.
    """
    asked = questions.get(session, answers_id, tenant_id=tenant_id)
    together = trees.asked_together(session, asked)[:MAX_DOCUMENTS]
    values = {
        # A line break in a question would make two of it.
        "questions": "\n".join(" ".join(each.split()) for each in asked.questions or []),
        "length": asked.length,
        "chunk_tokens": asked.chunk_tokens,
        "priority": PRIORITY_NAMES[asked.rank],
        "custom_id": asked.custom_id,
    }
    fields = {name: str(value) for name, value in values.items() if value is not None}
    return fields, queries.read_documents(session, together)


router = new_routes(
    NewSubject(
        SUBJECTS[Purpose.ANSWERS],
        title="New questions",
        command="ask FOLDER --questions FILE",
        template="answers/draft.html",
        defaults={"length": str(DEFAULT_LENGTH)},
        read_earlier=read_earlier,
        estimate=estimate,
        submit=submit,
        started="The questions are submitted.",
        several="{num} documents are asked.",
        together="table",
    )
)
