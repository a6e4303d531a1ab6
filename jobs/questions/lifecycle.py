"""What callers do with answers: create, get, list, delete. Their rows are those of `summaries`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import insert
from sqlalchemy.orm import Session

from jobs import audit, summaries
from jobs.database import database_now
from jobs.database.paging import Page, Range
from jobs.models import Summary, SummaryDocument
from jobs.questions.templates import ANSWER_TEMPLATE_VERSIONS
from jobs.states.summary import NodeKind, OnGap, Purpose, Style, SummaryState
from jobs.summaries import SummaryFilter, own_templates, stored_templates
from jobs.summaries.own_templates import OwnTemplate


@dataclass(frozen=True, slots=True)
class DocumentsSpec:
    """A validated request about documents, each of which is read apart.

    Attributes:
        document_ids: each once, in the caller's order.
        length: target length of a reply, in tokens.
        template: the caller's own, checked; None means ours.
        chunk_tokens: see `Summary`.
        rank: -1 low, 0 normal, 1 high.
        window: time from acceptance to expiry; None means no expiry.
        webhook_secret: sealed.
    """

    document_ids: Sequence[UUID]
    model: str
    length: int
    chat_template_kwargs: Mapping[str, object] | None = None
    template: OwnTemplate | None = None
    chunk_tokens: int | None = None
    rank: int = 0
    custom_id: str | None = None
    metadata: Mapping[str, str] | None = None
    webhook_url: str | None = None
    webhook_secret: bytes | None = None
    window: timedelta | None = None


def create(
    session: Session, spec: DocumentsSpec, *, questions: Sequence[str], tenant_id: UUID
) -> list[Summary]:
    """Create answers that wait to be planned, one for each document in order; it need not be ready.

    Args:
        session: the caller's transaction.
        spec: of the request.
        questions: to each document; each once, at least one.
        tenant_id: the owner.

    Raises:
        InvalidRequestError: the tenant has no such document, or a variable cannot be set; `param` names it.
    """
    own = {"purpose": Purpose.ANSWERS.value, "questions": list(questions)}
    return create_rows(session, spec, own, ANSWER_TEMPLATE_VERSIONS, tenant_id=tenant_id)


def create_rows(
    session: Session,
    spec: DocumentsSpec,
    own: Mapping[str, object],
    templates: Mapping[NodeKind, str],
    *,
    tenant_id: UUID,
) -> list[Summary]:
    """Create a row for each document in order, with its `own` columns; see `create`."""
    summaries.hold_documents(session, spec.document_ids, tenant_id=tenant_id)
    template_id = stored_templates.put(session, spec.template, tenant_id=tenant_id)
    now, key_id = database_now(session), audit.key_of(session)
    made = [
        Summary(
            tenant_id=tenant_id,
            state=SummaryState.PREPARING.value,
            is_combined=False,
            style=Style.PARAGRAPH.value,
            length=spec.length,
            chat_template_kwargs=stored_templates.guarded(spec.chat_template_kwargs, spec.template),
            template_id=template_id,
            on_gap=OnGap.SKIP.value,
            chunk_tokens=spec.chunk_tokens,
            overlap_tokens=0,
            model=spec.model,
            rank=spec.rank,
            templates=own_templates.versions_of(templates, spec.template),
            gaps=[],
            warnings=[],
            custom_id=spec.custom_id,
            labels=dict(spec.metadata or {}),
            webhook_url=spec.webhook_url,
            webhook_secret=spec.webhook_secret,
            created_at=now,
            expires_at=now + spec.window if spec.window else None,
            api_key_id=key_id,
            **own,
        )
        for _ in spec.document_ids
    ]
    session.add_all(made)
    session.flush()
    rows = [
        {"summary_id": each.id, "position": 0, "tenant_id": tenant_id, "document_id": document_id}
        for each, document_id in zip(made, spec.document_ids, strict=True)
    ]
    session.execute(insert(SummaryDocument), rows)
    return made


def get(session: Session, answers_id: UUID, *, tenant_id: UUID) -> Summary:
    """Get the tenant's answers.

    Raises:
        NotFoundError: the tenant has none of this id.
    """
    return summaries.get(session, answers_id, tenant_id=tenant_id, purpose=Purpose.ANSWERS)


def list_answers(session: Session, which: SummaryFilter, wanted: Range) -> Page[Summary]:
    """List the tenant's answers that match.

    Raises:
        InvalidRequestError: `wanted.after` is none of the tenant's answers.
    """
    return summaries.list_summaries(session, which, wanted, purpose=Purpose.ANSWERS)


def remove(session: Session, answers_id: UUID, *, tenant_id: UUID) -> None:
    """Delete answers that have ended, and their jobs; the document stays.

    Raises:
        NotFoundError: the tenant has none of this id.
        ConflictError: they have not ended.
    """
    summaries.remove(session, answers_id, tenant_id=tenant_id, purpose=Purpose.ANSWERS)
