"""A new summary: how the form of documents asks for it, what it would take, and an earlier one made again."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.console.documents.drafts import DocumentDraft, parse_fields, validated
from api.console.subjects.kinds import SUBJECTS
from api.console.subjects.new import Earlier, NewSubject, new_routes
from api.http.idempotency import IdempotencyHeaders
from api.runtime.services import Services
from api.summaries import verbs
from api.summaries.requests import SummaryEstimateRequest, SummaryRequest
from jobs import ids, summaries
from jobs.models import JsonObject, Summary
from jobs.states.summary import OnGap, Purpose, Style
from jobs.summaries import queries
from jobs.views import PRIORITY_NAMES

_NUMBERS: Final = ("length", "chunk_tokens")
_TEXTS: Final = ("style", "language", "focus", "instructions", "on_gap", "priority", "custom_id")


async def estimate(
    services: Services, draft: DocumentDraft, form: Mapping[str, str], *, tenant_id: UUID
) -> JsonObject:
    """Estimate what this form asks for; raise as `verbs.estimate` does."""
    draft.require_text()
    asked = validated(SummaryEstimateRequest, {"documents": draft.usable} | _parse(form))
    return await verbs.estimate(services, asked, tenant_id=tenant_id)


async def submit(
    services: Services,
    draft: DocumentDraft,
    form: Mapping[str, str],
    *,
    tenant_id: UUID,
    idempotency: IdempotencyHeaders,
) -> list[str]:
    """Submit the summaries, without documents that have no text; raise as `verbs.submit` does."""
    draft.require_text()
    asked = validated(SummaryRequest, {"documents": draft.usable} | _parse(form))
    made, _ = await verbs.submit(services, asked, tenant_id=tenant_id, idempotency=idempotency)
    return [each["id"] for each in made]


def _parse(form: Mapping[str, str]) -> dict[str, object]:
    """Read the options of a form; empty fields are not chosen.

    Raises:
        InvalidRequestError: a field that is a number has none.
    """
    chosen = parse_fields(form, numbers=_NUMBERS, texts=_TEXTS)
    if form.get("combine"):
        chosen["combine"] = True
    return chosen


def read_earlier(session: Session, summary_id: UUID, *, tenant_id: UUID) -> Earlier:
    """Read the options of an earlier summary as a form's fields, and its documents.

    Raises:
        NotFoundError: the tenant has no such summary.
    """
    summary = summaries.get(session, summary_id, tenant_id=tenant_id)
    (shown,) = queries.describe_each(session, [summary])
    return _fields_of(summary), [ids.parse_document_id(each) for each in shown["documents"]]


def _fields_of(summary: Summary) -> dict[str, str]:
    """Write the options of a summary as the fields of a form."""
    values = {
        "style": summary.style,
        "length": summary.length,
        "language": summary.language,
        "focus": summary.focus,
        "instructions": summary.instructions,
        "on_gap": summary.on_gap,
        "priority": PRIORITY_NAMES[summary.rank],
        "custom_id": summary.custom_id,
        "chunk_tokens": summary.chunk_tokens,
        "combine": "true" if summary.is_combined else None,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


router = new_routes(
    NewSubject(
        SUBJECTS[Purpose.SUMMARY],
        title="New summary",
        command="summarize FOLDER",
        template="summaries/draft.html",
        defaults={"style": "paragraph", "length": "400", "on_gap": "skip"},
        read_earlier=read_earlier,
        estimate=estimate,
        submit=submit,
        started="The summary is submitted.",
        several="{num} summaries are submitted.",
        values={
            "styles": tuple(Style),
            "gaps": {OnGap.SKIP: "go on without it", OnGap.FAIL: "fail"},
        },
    )
)
