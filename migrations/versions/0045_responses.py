"""What responses show besides their jobs: the parameters that they repeat, and the items of their input.

Expand only: a new table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("input_id", sa.Uuid()),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_responses")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_responses_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_responses_tenant_id")),
        sa.ForeignKeyConstraint(["request_id"], ["texts.id"], name=op.f("fk_responses_request_id")),
        sa.ForeignKeyConstraint(["input_id"], ["texts.id"], name=op.f("fk_responses_input_id")),
        if_not_exists=True,
    )
    op.create_index("ix_responses_request_id", "responses", ["request_id"], if_not_exists=True)
    op.create_index(
        "ix_responses_input_id",
        "responses",
        ["input_id"],
        postgresql_where=sa.text("input_id IS NOT NULL"),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("responses", if_exists=True)
