"""Where a job belongs in a trace, whether that is written yet, and when an answer was whole.

Expand only: columns that are nullable, an index of ended jobs with a trace, built beside writers. What the release
before inserts has no trace; its workers tell nothing of when an answer was whole, and send webhooks without a trace.
"""

from alembic import op

from migrations import online

revision = "0065"
down_revision = "0063"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("jobs", "traceparent", "text"),
    ("jobs", "traced_at", "timestamptz"),
    ("attempts", "answered_at", "timestamptz"),
    ("webhook_events", "traceparent", "text"),
)


def upgrade() -> None:
    for table, name, kind in _COLUMNS:
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {name} {kind}")
        online.commit()
    online.create_index(
        "ix_jobs_untraced",
        "jobs",
        ["id"],
        where="traceparent IS NOT NULL AND traced_at IS NULL AND finalized_at IS NOT NULL",
    )


def downgrade() -> None:
    online.drop_index("ix_jobs_untraced", "jobs")
    for table, name, _ in reversed(_COLUMNS):
        op.drop_column(table, name, if_exists=True)
