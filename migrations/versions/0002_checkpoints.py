"""Checkpoints: an unfinished job goes on from what it has generated, on any engine.

A table of its own, so that saving every few seconds bloats neither jobs nor results.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("output_ids", sa.LargeBinary(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("replaced", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint("num_tokens >= 0", name=op.f("ck_checkpoints_num_tokens")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_checkpoints")),
    )
    op.execute("ALTER TABLE checkpoints ALTER COLUMN output_ids SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("checkpoints")
