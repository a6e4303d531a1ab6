"""Summaries: trees of jobs over documents; a job that waits for others has no prompt yet.

Expand only: jobs without a summary do not change, and code of the revision before creates no others. Every
step that locks `jobs` or `webhook_events` changes the catalog alone; what reads these tables (indexes,
validation) follows in 0010, while they are written.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _create_summaries()
    _create_tree()
    op.add_column("jobs", sa.Column("summary_id", sa.Uuid(), nullable=True))
    op.alter_column("jobs", "text_id", existing_type=sa.Uuid(), nullable=True)
    # Not validated: every existing row has a text.
    op.execute(
        "ALTER TABLE jobs ADD CONSTRAINT ck_jobs_text_unless_waiting CHECK (text_id IS NOT NULL OR"
        " (summary_id IS NOT NULL AND state NOT IN ('queued', 'running', 'completed'))) NOT VALID"
    )
    op.add_column("webhook_events", sa.Column("summary_id", sa.Uuid(), nullable=True))
    _replace_subject("num_nonnulls(job_id, batch_id, endpoint_id, summary_id) = 1")


def downgrade() -> None:
    op.execute("DELETE FROM webhook_events WHERE summary_id IS NOT NULL")
    # An earlier form of this revision made these.
    op.drop_constraint(op.f("uq_webhook_events_summary_id_type"), "webhook_events", if_exists=True)
    _replace_subject("num_nonnulls(job_id, batch_id, endpoint_id) = 1")
    op.drop_column("webhook_events", "summary_id")
    # Jobs of trees are meaningless without their trees.
    op.execute("DELETE FROM reservations WHERE job_id IN (SELECT id FROM jobs WHERE summary_id IS NOT NULL)")
    op.execute("DELETE FROM jobs WHERE summary_id IS NOT NULL")
    op.drop_index("ix_jobs_blocked", "jobs", if_exists=True)
    op.drop_index("ix_jobs_summary", "jobs", if_exists=True)
    op.drop_constraint(op.f("ck_jobs_text_unless_waiting"), "jobs")
    op.alter_column("jobs", "text_id", existing_type=sa.Uuid(), nullable=False)
    op.drop_column("jobs", "summary_id")
    op.drop_table("summary_nodes")
    op.drop_table("summary_documents")
    op.drop_table("summaries")


def _replace_subject(condition: str) -> None:
    op.drop_constraint(op.f("ck_webhook_events_one_subject"), "webhook_events")
    op.create_check_constraint(
        op.f("ck_webhook_events_one_subject"), "webhook_events", condition, postgresql_not_valid=True
    )


def _create_summaries() -> None:
    op.create_table(
        "summaries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("is_combined", sa.Boolean(), nullable=False),
        sa.Column("style", sa.Text(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("instructions", sa.Text(), nullable=True),
        sa.Column("focus", sa.Text(), nullable=True),
        sa.Column("on_gap", sa.Text(), nullable=False),
        sa.Column("chunk_tokens", sa.Integer(), nullable=True),
        sa.Column("overlap_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("rank", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("templates", postgresql.JSONB(), nullable=False),
        sa.Column("plan", postgresql.JSONB(none_as_null=True), nullable=True),
        sa.Column("root_job_id", sa.Uuid(), nullable=True),
        sa.Column("gaps", postgresql.JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column("metadata", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("webhook_url", sa.Text(), nullable=True),
        sa.Column("webhook_secret", sa.LargeBinary(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("error", postgresql.JSONB(none_as_null=True), nullable=True),
        sa.Column("plan_after", _MOMENT, nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("planned_at", _MOMENT, nullable=True),
        sa.Column("finalized_at", _MOMENT, nullable=True),
        sa.Column("expires_at", _MOMENT, nullable=True),
        *_summary_checks(),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_summaries_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_summaries")),
    )
    op.create_index("ix_summaries_tenant", "summaries", ["tenant_id", "id"])
    op.create_index(
        "ix_summaries_open", "summaries", ["id"], postgresql_where=sa.text("finalized_at IS NULL")
    )
    op.create_index(
        "ix_summaries_finalized",
        "summaries",
        ["finalized_at"],
        postgresql_where=sa.text("finalized_at IS NOT NULL"),
    )
    op.create_index(
        "ix_summaries_custom_id",
        "summaries",
        ["tenant_id", "custom_id", "id"],
        postgresql_where=sa.text("custom_id IS NOT NULL"),
    )


def _summary_checks() -> list[sa.CheckConstraint]:
    ended = "state IN ('cancelled', 'completed', 'expired', 'failed')"
    conditions = {
        "state": "state IN ('cancelled', 'completed', 'expired', 'failed', 'preparing', 'running')",
        "terminal_iff_finalized": f"({ended}) = (finalized_at IS NOT NULL)",
        "failed_has_error": "state <> 'failed' OR error IS NOT NULL",
        "running_is_planned": "state NOT IN ('running', 'completed') OR root_job_id IS NOT NULL",
        "root_iff_planned": "(root_job_id IS NULL) = (plan IS NULL)",
        "style": "style IN ('bullets', 'paragraph', 'sections', 'tldr')",
        "on_gap": "on_gap IN ('fail', 'skip')",
        "stop_reason": "stop_reason IN ('cancel', 'expire', 'fail')",
        "bounds": "length >= 1 AND overlap_tokens >= 0 AND rank BETWEEN -1 AND 1",
    }
    return [
        sa.CheckConstraint(condition, name=op.f(f"ck_summaries_{name}"))
        for name, condition in conditions.items()
    ]


def _create_tree() -> None:
    op.create_table(
        "summary_documents",
        sa.Column("summary_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("document_id", sa.Uuid(), nullable=False),
        *_of_summary("summary_documents"),
        sa.PrimaryKeyConstraint("summary_id", "position", name=op.f("pk_summary_documents")),
    )
    op.create_index("ix_summary_documents_document", "summary_documents", ["document_id"])
    op.create_table(
        "summary_nodes",
        sa.Column("summary_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("document_id", sa.Uuid(), nullable=True),
        sa.Column("chunk", sa.Integer(), nullable=True),
        sa.Column("start_char", sa.Integer(), nullable=True),
        sa.Column("end_char", sa.Integer(), nullable=True),
        sa.Column("context_char", sa.Integer(), nullable=True),
        sa.Column("first_page", sa.Integer(), nullable=True),
        sa.Column("last_page", sa.Integer(), nullable=True),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("spare_job_id", sa.Uuid(), nullable=True),
        sa.CheckConstraint("kind IN ('map', 'reduce', 'whole')", name=op.f("ck_summary_nodes_kind")),
        sa.CheckConstraint(
            "(level = 0) = (document_id IS NOT NULL)"
            " AND (level = 0) = (num_nonnulls(chunk, start_char, end_char, context_char) = 4)",
            name=op.f("ck_summary_nodes_leaf_has_range"),
        ),
        sa.CheckConstraint("parent > number", name=op.f("ck_summary_nodes_children_first")),
        *_of_summary("summary_nodes"),
        sa.PrimaryKeyConstraint("summary_id", "number", name=op.f("pk_summary_nodes")),
    )
    op.create_index("ix_summary_nodes_job", "summary_nodes", ["job_id"], unique=True)
    op.create_index("ix_summary_nodes_parent", "summary_nodes", ["summary_id", "parent"])


def _of_summary(table: str) -> list[sa.ForeignKeyConstraint]:
    return [
        sa.ForeignKeyConstraint(
            ["summary_id"], ["summaries.id"], name=op.f(f"fk_{table}_summary_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f(f"fk_{table}_tenant_id")),
    ]
