"""The tables of summaries: what was asked, of which documents, and the tree of jobs that makes it."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, SmallInteger, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of
from jobs.ids import uuid7
from jobs.models.turn import PLANNING, indexes
from jobs.states.summary import TERMINAL, NodeKind, OnGap, Style, SummaryState, SummaryStop

_TERMINAL_SQL = one_of("state", sorted(TERMINAL))


class Summary(Base):
    """One summary, of one document or of several together.

    Attributes:
        is_combined: one over all of its documents.
        length: tokens that the summary should have.
        chunk_tokens: of the text of a chunk at most, as asked; None: what suits the engines.
        overlap_tokens: that a chunk repeats of the one before.
        rank: -1 low, 0 normal, 1 high; of all its jobs.
        templates: name and version of each template, by kind.
        plan: how it was cut: `chunk_tokens`, `part_tokens`, `levels`, `num_chunks`, `num_jobs`, `tokens`;
            None until planned.
        root_job_id: whose output is the summary; None until planned.
        gaps: documents that could not be read, where gaps are skipped; failed chunks are seen from the tree.
        stop_reason: why it should end early; its jobs that are left are being ended.
        plan_after: not planned before this: a document is awaited, or planning failed.
        refused_demand: what the last draft takes of the quota that had no room for it, see `drafts`;
            None: none was refused.
        num_plannings: times that planning was begun.
        lease_id, lease_expires_at: of the worker that plans it.
        deleted_at: when its owner deleted it; nobody sees it from then on, and its rows go in parts.
    """

    __tablename__ = "summaries"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    state: Mapped[str]
    is_combined: Mapped[bool]
    style: Mapped[str]
    length: Mapped[int]
    language: Mapped[str | None]
    instructions: Mapped[str | None]
    focus: Mapped[str | None]
    on_gap: Mapped[str]
    chunk_tokens: Mapped[int | None]
    overlap_tokens: Mapped[int] = mapped_column(server_default="0")
    model: Mapped[str]
    rank: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    templates: Mapped[JsonObject]
    plan: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    root_job_id: Mapped[UUID | None]
    gaps: Mapped[list[JsonObject]] = mapped_column(JSONB, server_default=text("'[]'"))
    custom_id: Mapped[str | None]
    # `metadata` is SQLAlchemy's own attribute name; the column has the public name.
    labels: Mapped[JsonObject] = mapped_column("metadata", server_default=text("'{}'"))
    webhook_url: Mapped[str | None]
    webhook_secret: Mapped[bytes | None]
    stop_reason: Mapped[str | None]
    error: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    plan_after: Mapped[datetime | None]
    refused_demand: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    num_plannings: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    lease_id: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    planned_at: Mapped[datetime | None]
    finalized_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint(one_of("state", sorted(SummaryState)), name="state"),
        CheckConstraint(f"({_TERMINAL_SQL}) = (finalized_at IS NOT NULL)", name="terminal_iff_finalized"),
        CheckConstraint("state <> 'failed' OR error IS NOT NULL", name="failed_has_error"),
        CheckConstraint(
            "state NOT IN ('running', 'completed') OR root_job_id IS NOT NULL", name="running_is_planned"
        ),
        CheckConstraint("(root_job_id IS NULL) = (plan IS NULL)", name="root_iff_planned"),
        CheckConstraint(one_of("style", sorted(Style)), name="style"),
        CheckConstraint(one_of("on_gap", sorted(OnGap)), name="on_gap"),
        CheckConstraint(one_of("stop_reason", sorted(SummaryStop)), name="stop_reason"),
        CheckConstraint("length >= 1 AND overlap_tokens >= 0 AND rank BETWEEN -1 AND 1", name="bounds"),
        CheckConstraint("(lease_id IS NULL) = (lease_expires_at IS NULL)", name="lease_whole"),
        CheckConstraint("lease_id IS NULL OR state = 'preparing'", name="lease_while_preparing"),
        CheckConstraint("deleted_at IS NULL OR finalized_at IS NOT NULL", name="deleted_has_ended"),
        Index("ix_summaries_tenant", "tenant_id", "id"),
        Index("ix_summaries_state", "tenant_id", "state", "id"),
        *indexes(PLANNING),
        # What service workers plan, stop and expire.
        Index("ix_summaries_open", "id", postgresql_where=text("finalized_at IS NULL")),
        Index("ix_summaries_finalized", "finalized_at", postgresql_where=text("finalized_at IS NOT NULL")),
        Index("ix_summaries_deleted", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
        Index(
            "ix_summaries_custom_id",
            "tenant_id",
            "custom_id",
            "id",
            postgresql_where=text("custom_id IS NOT NULL"),
        ),
    )


class SummaryDocument(Base):
    """One document of a summary; without a foreign key: a summary outlives its documents.

    Attributes:
        position: from 0, as the caller named them.
    """

    __tablename__ = "summary_documents"
    __table_args__ = (Index("ix_summary_documents_document", "document_id"),)

    summary_id: Mapped[UUID] = mapped_column(ForeignKey("summaries.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    document_id: Mapped[UUID]


class SummaryNode(Base):
    """One place in the tree of a summary: a chunk, a whole document, or what joins others.

    Attributes:
        number: from 0, children before their parent, so that the order of numbers is depth-first.
        parent: the number of the node that waits for this one; None: the root.
        level: 0 for leaves.
        document_id: of a leaf; None: it joins others.
        chunk: of a leaf: its place among its document's chunks, from 0.
        start_char, end_char: of a leaf, in its document's text: the part that it alone stands for.
        context_char: of a leaf: where the text that it reads begins; before `start_char` if chunks overlap.
        first_page, last_page: of a leaf, from 1; None: the document has no pages.
        tokens: of the text that it reads; expected ones where that is not written yet.
        job_id: the job that stands for it now.
        spare_job_id: the id of its second attempt, which keeps its place in the queue; None: it was used.
    """

    __tablename__ = "summary_nodes"

    summary_id: Mapped[UUID] = mapped_column(ForeignKey("summaries.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    kind: Mapped[str]
    level: Mapped[int] = mapped_column(SmallInteger)
    parent: Mapped[int | None]
    document_id: Mapped[UUID | None]
    chunk: Mapped[int | None]
    start_char: Mapped[int | None]
    end_char: Mapped[int | None]
    context_char: Mapped[int | None]
    first_page: Mapped[int | None]
    last_page: Mapped[int | None]
    tokens: Mapped[int]
    job_id: Mapped[UUID]
    spare_job_id: Mapped[UUID | None]

    __table_args__ = (
        CheckConstraint(one_of("kind", sorted(NodeKind)), name="kind"),
        CheckConstraint(
            "(level = 0) = (document_id IS NOT NULL)"
            " AND (level = 0) = (num_nonnulls(chunk, start_char, end_char, context_char) = 4)",
            name="leaf_has_range",
        ),
        CheckConstraint("parent > number", name="children_first"),
        Index("ix_summary_nodes_job", "job_id", unique=True),
        Index("ix_summary_nodes_parent", "summary_id", "parent"),
    )
