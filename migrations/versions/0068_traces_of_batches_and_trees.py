"""Where batches, summaries, answers and extractions belong in a trace, and whether that is written yet.

Expand only: columns that are nullable, and indexes of ended rows with a trace, built beside writers. Service workers
of the release before give no trace to the lines and jobs of those that have one.
"""

from alembic import op

from migrations import online

revision = "0068"
down_revision = "0067"
branch_labels = None
depends_on = None

_ENDED = {
    "summaries": "finalized_at IS NOT NULL",
    "batches": "state IN ('cancelled', 'completed', 'expired', 'failed')",
}


def upgrade() -> None:
    for table, has_ended in _ENDED.items():
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS traceparent text")
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS traced_at timestamptz")
        online.commit()
        online.create_index(
            f"ix_{table}_untraced",
            table,
            ["id"],
            where=f"traceparent IS NOT NULL AND traced_at IS NULL AND {has_ended}",
        )


def downgrade() -> None:
    for table in reversed(_ENDED):
        online.drop_index(f"ix_{table}_untraced", table)
        op.drop_column(table, "traced_at", if_exists=True)
        op.drop_column(table, "traceparent", if_exists=True)
