"""Segments: reservations cover a predicted output and grow; no job is overtaken for long.

Drops `passed_over_at`: the head of the queue has a shadow time from the start, whatever overtook it before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("jobs", sa.Column("num_yields", sa.SmallInteger(), server_default="0", nullable=False))
    op.drop_column("jobs", "passed_over_at")
    op.create_index(
        "ix_jobs_recent_outputs",
        "jobs",
        ["tenant_id", "task", "finalized_at"],
        postgresql_where=sa.text("state = 'completed'"),
    )
    # Reservations of running jobs covered all that they may generate.
    op.add_column("reservations", sa.Column("output_tokens", sa.Integer(), nullable=True))
    op.execute(
        "UPDATE reservations SET output_tokens ="
        " coalesce((SELECT max_tokens FROM jobs WHERE jobs.id = reservations.job_id), 1)"
    )
    op.alter_column("reservations", "output_tokens", nullable=False)
    op.add_column("reservations", sa.Column("overtakes", sa.Uuid(), nullable=True))
    op.add_column(
        "reservations",
        sa.Column("is_waiting", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("reservations", "is_waiting")
    op.drop_column("reservations", "overtakes")
    op.drop_column("reservations", "output_tokens")
    op.drop_index("ix_jobs_recent_outputs", "jobs")
    op.add_column("jobs", sa.Column("passed_over_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_column("jobs", "num_yields")
