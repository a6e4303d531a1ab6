"""Summaries before they are submitted: how the form asks for them, and what that would take."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.console.documents.drafts import MAX_DOCUMENTS, DocumentDraft, parse_fields, validated
from api.runtime.services import Services
from api.summaries import verbs
from api.summaries.requests import SummaryEstimateRequest, SummaryRequest
from jobs import ids
from jobs.errors import LongbatchError
from jobs.models import JsonObject, Summary
from jobs.summaries import queries
from jobs.summaries.lifecycle import get
from jobs.views import PRIORITY_NAMES

_NUMBERS: Final = ("length", "chunk_tokens")
_TEXTS: Final = ("style", "language", "focus", "instructions", "on_gap", "priority", "custom_id")
DEFAULTS: Final[Mapping[str, str]] = {"style": "paragraph", "length": "400", "on_gap": "skip"}


def read_options_of(
    session: Session, *, summary_id: UUID, tenant_id: UUID
) -> tuple[dict[str, str], list[UUID]]:
    """Read the options of an earlier summary as a form's fields, and its documents.

    Raises:
        NotFoundError: the tenant has no such summary.
    """
    summary = get(session, summary_id, tenant_id=tenant_id)
    (shown,) = queries.describe(session, [summary])
    document_ids = [ids.parse_document_id(each) for each in shown["documents"]]
    return _fields_of(summary), document_ids[:MAX_DOCUMENTS]


def parse_options(form: Mapping[str, str]) -> dict[str, object]:
    """Read the options of a form; empty fields are not chosen.

    Raises:
        InvalidRequestError: a field that is a number has none.
    """
    chosen = parse_fields(form, numbers=_NUMBERS, texts=_TEXTS)
    if form.get("combine"):
        chosen["combine"] = True
    return chosen


def request_of(draft: DocumentDraft, form: Mapping[str, str]) -> SummaryRequest:
    """Make the request that this form asks for; documents without a text are left out.

    Raises:
        InvalidRequestError: an option is invalid, or no document has a text.
    """
    draft.require_text()
    return validated(SummaryRequest, {"documents": draft.usable} | parse_options(form))


async def estimate(
    services: Services, draft: DocumentDraft, form: Mapping[str, str], *, tenant_id: UUID
) -> JsonObject:
    """Estimate what this form asks for; raise as `verbs.estimate` does."""
    draft.require_text()
    given = {"documents": draft.usable} | parse_options(form)
    return await verbs.estimate(services, validated(SummaryEstimateRequest, given), tenant_id=tenant_id)


async def try_estimate(
    services: Services, draft: DocumentDraft, form: Mapping[str, str], *, tenant_id: UUID
) -> tuple[JsonObject | None, str | None]:
    """Estimate as `estimate` does once all documents are read; otherwise tell why there is no estimate."""
    if draft.extracting or not draft.documents:
        return None, None
    try:
        return await estimate(services, draft, form, tenant_id=tenant_id), None
    except LongbatchError as error:
        return None, error.message


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
