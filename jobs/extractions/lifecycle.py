"""What callers do with extractions: create, get, list, delete. Their rows are in `summaries`."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import summaries
from jobs.database.paging import Page, Range
from jobs.extractions.fields import Field
from jobs.extractions.templates import EXTRACTION_TEMPLATE_VERSIONS
from jobs.models import Summary
from jobs.questions import DocumentsSpec
from jobs.questions.lifecycle import create_rows
from jobs.states.summary import Purpose
from jobs.summaries import SummaryFilter


def create(
    session: Session,
    spec: DocumentsSpec,
    *,
    schema: Mapping[str, Any],
    fields: Sequence[Field],
    tenant_id: UUID,
) -> list[Summary]:
    """Create extractions that wait to be planned, one for each document in order; it need not be ready.

    Args:
        session: the caller's transaction.
        spec: of the request.
        schema: of the fields, checked.
        fields: that it has.
        tenant_id: the owner.

    Raises:
        InvalidRequestError: the tenant has no such document; `param` names it.
    """
    own = {
        "purpose": Purpose.EXTRACTION.value,
        "schema": dict(schema),
        "joins": {each.name: each.rule.value for each in fields},
    }
    return create_rows(session, spec, own, EXTRACTION_TEMPLATE_VERSIONS, tenant_id=tenant_id)


def get(session: Session, extraction_id: UUID, *, tenant_id: UUID) -> Summary:
    """Get the tenant's extraction.

    Raises:
        NotFoundError: the tenant has none of this id.
    """
    return summaries.get(session, extraction_id, tenant_id=tenant_id, purpose=Purpose.EXTRACTION)


def list_extractions(session: Session, which: SummaryFilter, wanted: Range) -> Page[Summary]:
    """List the tenant's extractions that match.

    Raises:
        InvalidRequestError: `wanted.after` is none of the tenant's extractions.
    """
    return summaries.list_summaries(session, which, wanted, purpose=Purpose.EXTRACTION)


def remove(session: Session, extraction_id: UUID, *, tenant_id: UUID) -> None:
    """Delete an extraction that has ended, and its jobs; the document stays.

    Raises:
        NotFoundError: the tenant has none of this id.
        ConflictError: it has not ended.
    """
    summaries.remove(session, extraction_id, tenant_id=tenant_id, purpose=Purpose.EXTRACTION)
