"""Indexes and validated constraints of 0009, built while jobs run.

A database that had an earlier form of 0009 already has the indexes, which then stay as they are.
"""

from alembic import op

from migrations import online

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_UNIQUE = "uq_webhook_events_summary_id_type"


def upgrade() -> None:
    online.create_index("ix_jobs_summary", "jobs", ["summary_id"], where="summary_id IS NOT NULL")
    online.create_index("ix_jobs_blocked", "jobs", ["id"], where="state = 'blocked'")
    online.create_unique(_UNIQUE, "webhook_events", ["summary_id", "type"])
    online.validate("webhook_events", "ck_webhook_events_one_subject")
    online.validate("jobs", "ck_jobs_text_unless_waiting")


def downgrade() -> None:
    op.drop_constraint(op.f(_UNIQUE), "webhook_events", if_exists=True)
    online.drop_index("ix_jobs_blocked", "jobs")
    online.drop_index("ix_jobs_summary", "jobs")
