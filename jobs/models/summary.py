"""The tables of summaries, answers and extractions: request, documents, tree of jobs, what that found."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, SmallInteger, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of, partial_index
from jobs.database.sealed_columns import SealedFacts, SealedList, SealedNote
from jobs.ids import ANSWERS, EXTRACTION, SUMMARY, uuid7
from jobs.models.job import UNTRACED
from jobs.models.turn import PLANNING, indexes
from jobs.states.summary import TERMINAL, NodeKind, OnGap, Purpose, Style, SummaryState, SummaryStop

_TERMINAL_SQL = one_of("state", sorted(TERMINAL))
_ID_KINDS: Final = {Purpose.SUMMARY: SUMMARY, Purpose.ANSWERS: ANSWERS, Purpose.EXTRACTION: EXTRACTION}
# SQL condition of answers and extractions whose jobs run, or have ended but are not settled.
UNSETTLED: Final = "purpose <> 'summary' AND state = 'running'"
# SQL condition of those of a key that wait for room in a quota.
REFUSED_OF_KEY: Final = "state = 'preparing' AND refused_demand IS NOT NULL AND api_key_id IS NOT NULL"


class Summary(Base):
    """One summary, of one document or of several together; or what one document says to its reader.

    `summaries.lifecycle` creates and cancels it, a service worker plans it (`planning`, `drafts`), and
    `trees.progress` ends it with its jobs. Answers are created by `questions.lifecycle`, extractions by
    `extractions.lifecycle`, and a service worker ends both (`questions.settling`). What callers wrote into it
    is an `Unreadable` where it cannot be decrypted, so that rounds over many rows go on.

    Attributes:
        id: UUIDv7.
        tenant_id: the owner.
        purpose: a `Purpose`.
        questions: of answers: what is asked, in order. Null for others.
        schema: of an extraction: the JSON Schema of its fields, in the caller's order. Null for others.
        joins: of an extraction: the `JoinRule` of each field. Null for others.
        fault: of an extraction: why the values that it found are not valid by its schema. Null: they are, or
            it is not settled.
        state: a `SummaryState`.
        is_combined: one summary over all of its documents.
        style: a `Style`.
        length: tokens that the summary, or each reply, should have, at least 1.
        language: language to write in. Null: that of the document.
        instructions: the caller's own, followed besides the template's. Null: none.
        focus: what matters most to the caller. Null: nothing in particular.
        chat_template_kwargs: the caller's variables for the model's chat template, in every prompt; `{}` if
            none.
        template_id: the caller's own template (`summaries.own_templates`); stored as texts are. Null: none.
            `chat_template_kwargs` then has a guard, which the caller never sees.
        on_gap: an `OnGap`: what happens when a chunk fails for good or a document has no text.
        chunk_tokens: most tokens of text in a chunk, as the caller asked. Null: what suits the engines.
        overlap_tokens: tokens that a chunk repeats of the one before, at least 0.
        model: the model of all its jobs.
        rank: -1 low, 0 normal, 1 high, for all its jobs.
        templates: name and version of each template, by `NodeKind`. Fixed at creation, so that results
            compare.
        plan: the shape of the tree: `levels`, `chunks`, `jobs`, `fan_in`, and in tokens `chunk_tokens`,
            `part_tokens` and `prompt_tokens`. Null until planned.
        root_job_id: the job whose output is the summary; a second attempt replaces it. Of answers, the last
            job of the plan. Null until planned.
        gaps: documents without a text, `{document_id, error}` each, where gaps are skipped. Chunks that
            failed are read from the tree. Of a settled extraction: parts that it leaves out,
            `{start, end, pages, error}` each.
        warnings: of its documents, `{document_id, code, message, pages?}` each; kept when a document is
            deleted. `[]` until planned.
        custom_id: the caller's own name for the summary, not unique. Null if it gave none.
        labels: the column `metadata`: the caller's own keys and values, `{}` if none.
        webhook_url: where the final event goes, besides the tenant's endpoints. Null: nowhere else.
        webhook_secret: sealed secret that signs deliveries to `webhook_url`. Null: the tenant's default
            signs.
        stop_reason: a `SummaryStop`: why it ends early. The first reason counts; the jobs that are left are
            then stopped. Null: it runs to its end.
        error: `{code, message, details?}` of a failed summary, set already while its jobs are being stopped.
            Null otherwise.
        plan_after: not planned before this, as a document is still being extracted or planning failed. The
            end of a document clears it. Null: at once.
        refused_demand: what the last draft would have taken of the quota that had no room for it; see
            `drafts`. Null: the quota refused none, or the summary is planned.
        num_completed: nodes of its tree whose present job has completed; see `trees.counts`. Null: its ends
            are not counted, as it is not planned, or a release before planned it.
        num_failed: nodes whose present job has ended without completing.
        ended_tokens: planned prompt tokens of these nodes.
        used_prompt_tokens: of jobs that began and have ended, replaced ones included, as the next two.
        used_cached_tokens: of these, what engines had in their caches.
        used_completion_tokens: that they generated.
        num_plannings: attempts at planning. `turns` adds one as it takes the summary, and takes it back if it
            only has to wait.
        lease_id: the fence of the worker that plans it. Null unless one does.
        lease_expires_at: until when that lease holds; its worker renews it. Null with `lease_id`.
        created_at: when it was asked for.
        planned_at: when its jobs were created. Null before.
        finalized_at: when it reached its final state. Null until then. Retention counts from here.
        deleted_at: when its owner deleted it. Hidden from then on; its rows are removed in parts. Null
            before.
        expires_at: when its completion window ends; its jobs have the same one. Null: never.
        traceparent: as of a job. Null: neither it nor any of its jobs has a trace.
        traced_at: as of a job.
        api_key_id: the key that asked for it, and that its jobs count towards. Null as of a job.
    """

    __tablename__ = "summaries"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    purpose: Mapped[str] = mapped_column(server_default=Purpose.SUMMARY.value)
    questions: Mapped[list[str] | None] = mapped_column(SealedFacts("summaries.questions"))
    # JSONB would not keep the order of the fields.
    schema: Mapped[JsonObject | None] = mapped_column(SealedFacts("summaries.schema", keeps_order=True))
    joins: Mapped[JsonObject | None] = mapped_column(SealedFacts("summaries.joins"))
    fault: Mapped[str | None] = mapped_column(SealedNote("summaries.fault"))
    state: Mapped[str]
    is_combined: Mapped[bool]
    style: Mapped[str]
    length: Mapped[int]
    language: Mapped[str | None]
    instructions: Mapped[str | None] = mapped_column(SealedNote("summaries.instructions"))
    focus: Mapped[str | None] = mapped_column(SealedNote("summaries.focus"))
    chat_template_kwargs: Mapped[JsonObject] = mapped_column(server_default=text("'{}'"))
    template_id: Mapped[UUID | None] = mapped_column(ForeignKey("texts.id"))
    on_gap: Mapped[str]
    chunk_tokens: Mapped[int | None]
    overlap_tokens: Mapped[int] = mapped_column(server_default="0")
    model: Mapped[str]
    rank: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    templates: Mapped[JsonObject]
    plan: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    root_job_id: Mapped[UUID | None]
    gaps: Mapped[list[JsonObject]] = mapped_column(JSONB, server_default=text("'[]'"))
    warnings: Mapped[list[JsonObject]] = mapped_column(
        SealedList("summaries.warnings"), server_default=text("'[]'")
    )
    custom_id: Mapped[str | None]
    # `metadata` is SQLAlchemy's own attribute name; the column has the public name.
    labels: Mapped[JsonObject] = mapped_column("metadata", server_default=text("'{}'"))
    webhook_url: Mapped[str | None]
    webhook_secret: Mapped[bytes | None]
    stop_reason: Mapped[str | None]
    error: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    plan_after: Mapped[datetime | None]
    refused_demand: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    num_completed: Mapped[int | None]
    num_failed: Mapped[int] = mapped_column(server_default="0")
    ended_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    used_prompt_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    used_cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    used_completion_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    num_plannings: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    lease_id: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    planned_at: Mapped[datetime | None]
    finalized_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    traceparent: Mapped[str | None]
    traced_at: Mapped[datetime | None]
    api_key_id: Mapped[UUID | None]

    @property
    def public_id(self) -> str:
        """What names it to callers."""
        return _ID_KINDS[Purpose(self.purpose)].format(self.id)

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
        CheckConstraint(one_of("purpose", sorted(Purpose)), name="purpose"),
        CheckConstraint("(purpose = 'answers') = (questions IS NOT NULL)", name="answers_have_questions"),
        CheckConstraint(
            "num_nonnulls(schema, joins) = CASE purpose WHEN 'extraction' THEN 2 ELSE 0 END",
            name="extractions_have_schema",
        ),
        CheckConstraint(
            "template_id IS NULL OR jsonb_exists(chat_template_kwargs, 'messages')",
            name="template_is_guarded",
        ),
        Index("ix_summaries_tenant", "tenant_id", "id"),
        Index("ix_summaries_state", "tenant_id", "state", "id"),
        Index("ix_summaries_purpose", "tenant_id", "purpose", "id"),
        *indexes(PLANNING),
        # Summaries that service workers plan, stop and expire.
        partial_index("ix_summaries_open", "id", where="finalized_at IS NULL"),
        # Answers and extractions that service workers settle.
        partial_index("ix_summaries_unsettled", "id", where=UNSETTLED),
        partial_index("ix_summaries_template_id", "template_id", where="template_id IS NOT NULL"),
        partial_index("ix_summaries_finalized", "finalized_at", where="finalized_at IS NOT NULL"),
        partial_index("ix_summaries_untraced", "id", where=UNTRACED),
        partial_index("ix_summaries_deleted", "deleted_at", where="deleted_at IS NOT NULL"),
        # Those that wait for room in their key's quota, in line.
        partial_index("ix_summaries_refused_of_key", "tenant_id", "api_key_id", "id", where=REFUSED_OF_KEY),
        partial_index(
            "ix_summaries_custom_id", "tenant_id", "custom_id", "id", where="custom_id IS NOT NULL"
        ),
    )


class SummaryDocument(Base):
    """One document of a summary. No foreign key to it: a summary outlives its documents.

    Attributes:
        summary_id: the summary. Deleted with it.
        position: place in the caller's order, from 0.
        tenant_id: the owner.
        document_id: the document, which may be deleted by now.
    """

    __tablename__ = "summary_documents"
    __table_args__ = (Index("ix_summary_documents_document", "document_id"),)

    summary_id: Mapped[UUID] = mapped_column(ForeignKey("summaries.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    document_id: Mapped[UUID]


class SummaryNode(Base):
    """One place in a tree: a chunk, a whole document, or a join of other nodes.

    Planning writes the whole tree; after that only `job_id` and `spare_job_id` change.

    Attributes:
        summary_id: the summary. Deleted with it.
        number: from 0, children before their parent. In summaries the order of numbers is depth-first; in
            answers all questions about a chunk come together, so that it is read once.
        tenant_id: the owner.
        kind: a `NodeKind`.
        level: 0 for leaves, one more than its children for joins.
        parent: the number of the node that waits for this one. Null: the root.
        document_id: the document that a leaf reads. Null for joins.
        chunk: place among the chunks of its document, from 0. Null for joins.
        start_char: first character, in the document's text, of the stretch that this leaf alone covers. Null
            for joins.
        end_char: the character after that stretch. Null for joins.
        context_char: where the text that it reads begins: before `start_char` if chunks overlap. Null for
            joins.
        first_page: page of `start_char`, from 1. Null for joins, and for documents without pages.
        last_page: page of the last character of the stretch. Null with `first_page`.
        question: the place, among the questions, of the one that it is about. Null unless it answers one.
        tokens: tokens of its prompt, template included. For joins an upper bound, as their text does not
            exist yet.
        job_id: the job that does its work. Unique.
        spare_job_id: id kept for a second attempt, which so keeps its place in the queue. Null once used.
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
    question: Mapped[int | None] = mapped_column(SmallInteger)
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


class DocumentFinding(Base):
    """What a document says to a question, or of a field. `questions.settling` writes it; nothing changes it.

    Its content is an `Unreadable` where it cannot be decrypted, so that it hides no other row.

    Attributes:
        summary_id: the row of `summaries` that asks. Deleted with it.
        place: of the question among its questions, or of the field among its fields, from 0.
        tenant_id: the owner.
        value: the answer, or the field's value, as JSON. Null: the document has none, or `error` says why it
            is not known.
        sources: of a field: the quotes of the parts that said it, as `extractions.joining` describes them.
            Null for answers, which have the columns below.
        quote: the words that it is founded on, as the model gave them. Null: it gave none.
        is_quoted: whether these words are in the document's text. Null: there is no quote, or no text.
        start_char: first character of these words in the text. Null unless `is_quoted`.
        end_char: the character after them. Null with `start_char`.
        first_page: page on which it is founded: of these words if they are in the text, otherwise the first
            of the text that was read. From 1. Null: no pages, or no answer.
        last_page: the last of these pages. Null with `first_page`.
        gaps: parts of the text that could not be asked, `{start, end, pages, error}` each.
        error: `{code, message}`: why it is not known. Null: it is.
    """

    __tablename__ = "findings"

    summary_id: Mapped[UUID] = mapped_column(ForeignKey("summaries.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    value: Mapped[Any] = mapped_column(SealedFacts("findings.value"), nullable=True)
    sources: Mapped[list[JsonObject] | None] = mapped_column(SealedFacts("findings.sources"))
    quote: Mapped[str | None] = mapped_column(SealedNote("findings.quote"))
    is_quoted: Mapped[bool | None]
    start_char: Mapped[int | None]
    end_char: Mapped[int | None]
    first_page: Mapped[int | None]
    last_page: Mapped[int | None]
    gaps: Mapped[list[JsonObject]] = mapped_column(JSONB, server_default=text("'[]'"))
    error: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))

    __table_args__ = (
        CheckConstraint("error IS NULL OR value IS NULL", name="error_has_no_value"),
        CheckConstraint("is_quoted IS NULL OR quote IS NOT NULL", name="checked_has_quote"),
        CheckConstraint(
            "(is_quoted IS TRUE) = (num_nonnulls(start_char, end_char) = 2)", name="quoted_is_placed"
        ),
    )
