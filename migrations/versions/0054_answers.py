"""Answers: what a row of `summaries` is for, the questions that it asks, and what documents say to them.

Expand only: columns that are nullable or have a constant default, an index built beside writers, a new table.
What processes of the release before create are summaries.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from migrations import online

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

_CHECKS = {
    "purpose": "purpose IN ('answers', 'summary')",
    "answers_have_questions": "(purpose = 'answers') = (questions IS NOT NULL)",
}


def upgrade() -> None:
    op.execute(
        "ALTER TABLE summaries ADD COLUMN IF NOT EXISTS purpose text DEFAULT 'summary' NOT NULL,"
        " ADD COLUMN IF NOT EXISTS questions jsonb"
    )
    op.execute("ALTER TABLE summary_nodes ADD COLUMN IF NOT EXISTS question smallint")
    for name, condition in _CHECKS.items():
        op.execute(f"ALTER TABLE summaries DROP CONSTRAINT IF EXISTS ck_summaries_{name}")
        op.execute(f"ALTER TABLE summaries ADD CONSTRAINT ck_summaries_{name} CHECK ({condition}) NOT VALID")
    _create_findings()
    for name in _CHECKS:
        online.validate("summaries", f"ck_summaries_{name}")
    online.create_index(
        "ix_summaries_answers", "summaries", ["id"], where="purpose = 'answers' AND state = 'running'"
    )


def downgrade() -> None:
    online.drop_index("ix_summaries_answers", "summaries")
    op.drop_table("findings", if_exists=True)
    # The release before would take answers for summaries.
    answers = "(SELECT id FROM summaries WHERE purpose = 'answers')"
    op.execute(f"DELETE FROM webhook_events WHERE summary_id IN {answers}")
    op.execute(
        f"DELETE FROM reservations WHERE job_id IN (SELECT id FROM jobs WHERE summary_id IN {answers})"
    )
    op.execute(f"DELETE FROM jobs WHERE summary_id IN {answers}")
    op.execute("DELETE FROM summaries WHERE purpose = 'answers'")
    for name in _CHECKS:
        op.execute(f"ALTER TABLE summaries DROP CONSTRAINT IF EXISTS ck_summaries_{name}")
    op.drop_column("summary_nodes", "question", if_exists=True)
    for column in ("questions", "purpose"):
        op.drop_column("summaries", column, if_exists=True)


def _create_findings() -> None:
    conditions = {
        "error_has_no_value": "error IS NULL OR value IS NULL",
        "checked_has_quote": "is_quoted IS NULL OR quote IS NOT NULL",
        "quoted_is_placed": "(is_quoted IS TRUE) = (num_nonnulls(start_char, end_char) = 2)",
    }
    op.create_table(
        "findings",
        sa.Column("summary_id", sa.Uuid(), nullable=False),
        sa.Column("place", sa.SmallInteger(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("value", postgresql.JSONB(none_as_null=True), nullable=True),
        sa.Column("quote", sa.Text(), nullable=True),
        sa.Column("is_quoted", sa.Boolean(), nullable=True),
        sa.Column("start_char", sa.Integer(), nullable=True),
        sa.Column("end_char", sa.Integer(), nullable=True),
        sa.Column("first_page", sa.Integer(), nullable=True),
        sa.Column("last_page", sa.Integer(), nullable=True),
        sa.Column("gaps", postgresql.JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("error", postgresql.JSONB(none_as_null=True), nullable=True),
        *(
            sa.CheckConstraint(condition, name=op.f(f"ck_findings_{name}"))
            for name, condition in conditions.items()
        ),
        sa.ForeignKeyConstraint(
            ["summary_id"], ["summaries.id"], name=op.f("fk_findings_summary_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_findings_tenant_id")),
        sa.PrimaryKeyConstraint("summary_id", "place", name=op.f("pk_findings")),
        if_not_exists=True,
    )
