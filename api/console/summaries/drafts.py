"""Summaries before they are submitted: of which documents, how, and what that would take."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from api.runtime.services import Services
from api.summaries import verbs
from api.summaries.requests import SummaryEstimateRequest, SummaryOptions, SummaryRequest
from jobs import documents, ids
from jobs.errors import InvalidRequestError, LongbatchError
from jobs.models import JsonObject, Summary
from jobs.models.document import Document
from jobs.states.document import DocumentState
from jobs.summaries import queries
from jobs.summaries.lifecycle import get
from jobs.validation import from_validation
from jobs.views import PRIORITY_NAMES

Asked = TypeVar("Asked", bound=SummaryOptions)
# As many as an address of a few kilobytes holds; more are for `longbatch summarize`.
MAX_DOCUMENTS: Final = 200
_ID_BYTES: Final = 16
_NUMBERS: Final = ("length", "chunk_tokens")
_TEXTS: Final = ("style", "language", "focus", "instructions", "on_gap", "priority", "custom_id")
DEFAULTS: Final[Mapping[str, str]] = {"style": "paragraph", "length": "400", "on_gap": "skip"}


@dataclass(frozen=True, slots=True)
class SummaryDraft:
    """Documents to summarize.

    Attributes:
        documents: of the tenant, in the caller's order; those that are deleted are left out.
    """

    documents: Sequence[Document]

    @property
    def extracting(self) -> list[UUID]:
        """The documents whose texts are not there yet."""
        return [each.id for each in self.documents if each.state == DocumentState.EXTRACTING]

    @property
    def usable(self) -> list[str]:
        """The public ids of all that have a text, or may get one."""
        return [ids.document_id(each.id) for each in self.documents if each.state != DocumentState.FAILED]

    @property
    def packed(self) -> str:
        """The documents as an address holds them."""
        return pack_ids([each.id for each in self.documents])


def pack_ids(document_ids: Sequence[UUID]) -> str:
    """Write ids in as few characters as an address allows."""
    return base64.urlsafe_b64encode(b"".join(each.bytes for each in document_ids)).decode().rstrip("=")


def unpack_ids(text: str) -> list[UUID]:
    """Read ids that `pack_ids` wrote; each once.

    Raises:
        InvalidRequestError: these are none, or too many.
    """
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b"?"
    if len(raw) % _ID_BYTES or len(raw) > _ID_BYTES * MAX_DOCUMENTS:
        raise InvalidRequestError(f"These are no ids of at most {MAX_DOCUMENTS} documents.", param="of")
    found = [UUID(bytes=raw[at : at + _ID_BYTES]) for at in range(0, len(raw), _ID_BYTES)]
    return list(dict.fromkeys(found))


def read_draft(session: Session, *, document_ids: Sequence[UUID], tenant_id: UUID) -> SummaryDraft:
    """Read the tenant's documents of these ids, in this order."""
    query = select(Document).where(Document.id.in_(document_ids), *documents.visible(tenant_id))
    found = {each.id: each for each in session.scalars(query.options(defer(Document.pages)))}
    return SummaryDraft([found[each] for each in document_ids if each in found])


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
    chosen: dict[str, object] = {}
    for name in _NUMBERS:
        if text := form.get(name, "").strip():
            if not (text.isascii() and text.isdecimal() and len(text) < 10):
                raise InvalidRequestError(f"{name}: Must be a number.", param=name)
            chosen[name] = int(text)
    for name in _TEXTS:
        if text := form.get(name, "").strip():
            chosen[name] = text.replace("\r\n", "\n")
    if form.get("combine"):
        chosen["combine"] = True
    return chosen


def request_of(draft: SummaryDraft, form: Mapping[str, str]) -> SummaryRequest:
    """Make the request that this form asks for; documents without a text are left out.

    Raises:
        InvalidRequestError: an option is invalid, or no document has a text.
    """
    if not draft.usable:
        raise InvalidRequestError("None of the documents has a text.")
    return _validated(SummaryRequest, {"documents": draft.usable} | parse_options(form))


async def estimate(
    services: Services, draft: SummaryDraft, form: Mapping[str, str], *, tenant_id: UUID
) -> JsonObject:
    """Estimate what this form asks for; raise as `verbs.estimate` does."""
    if not draft.usable:
        raise InvalidRequestError("None of the documents has a text.")
    given = {"documents": draft.usable} | parse_options(form)
    return await verbs.estimate(services, _validated(SummaryEstimateRequest, given), tenant_id=tenant_id)


async def try_estimate(
    services: Services, draft: SummaryDraft, form: Mapping[str, str], *, tenant_id: UUID
) -> tuple[JsonObject | None, str | None]:
    """Estimate as `estimate` does once all documents are read; otherwise tell why there is no estimate."""
    if draft.extracting or not draft.documents:
        return None, None
    try:
        return await estimate(services, draft, form, tenant_id=tenant_id), None
    except LongbatchError as error:
        return None, error.message


def _validated(model: type[Asked], given: Mapping[str, object]) -> Asked:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise from_validation(error) from None


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
