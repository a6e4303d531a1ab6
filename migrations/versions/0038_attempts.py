"""A row for every run of a job that is over: which engine and worker had it, how it ended, what it used.

Expand only: a new table, and a nullable column of a table that has a row for each running job. Workers of the
release before leave no rows.
"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_OUTCOMES = (
    "'cancelled', 'completed', 'expired', 'failed', 'lost', 'preempted', 'recounted', 'released', 'retried',"
    " 'yielded'"
)
_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.execute("ALTER TABLE reservations ADD COLUMN IF NOT EXISTS worker text")
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("lease_id", sa.Uuid(), nullable=False),
        sa.Column("engine_name", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("started_at", _MOMENT, nullable=False),
        sa.Column("first_token_at", _MOMENT),
        sa.Column("ended_at", _MOMENT, nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text()),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer()),
        sa.Column("completion_tokens", sa.Integer()),
        sa.Column("blocks", sa.Integer()),
        sa.PrimaryKeyConstraint("job_id", "lease_id", name=op.f("pk_attempts")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id"), ondelete="CASCADE"),
        sa.CheckConstraint(f"outcome IN ({_OUTCOMES})", name=op.f("ck_attempts_outcome")),
        if_not_exists=True,
    )
    op.create_index("ix_attempts_engine", "attempts", ["engine_name", "ended_at"], if_not_exists=True)


def downgrade() -> None:
    op.drop_table("attempts", if_exists=True)
    op.drop_column("reservations", "worker", if_exists=True)
