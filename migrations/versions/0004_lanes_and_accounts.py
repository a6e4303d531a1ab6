"""Lanes, tenants' accounts, and an index that gives a claim the first jobs of each size of each tenant."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SIZE_CLASS = "width_bucket(prompt_tokens, '{2048,4096,8192,16384,32768,65536}'::integer[])"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("tenants", sa.Column("weight", sa.Float(), server_default="1", nullable=False))
    op.create_check_constraint("weight", "tenants", "weight > 0")
    op.create_table(
        "accounts",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("served", sa.Float(), server_default="0", nullable=False),
        sa.Column("is_active", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_accounts_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "model", name="pk_accounts"),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index("ix_accounts_active", "accounts", ["model"], postgresql_where=sa.text("is_active"))
    op.add_column("jobs", sa.Column("lane", sa.Text(), server_default="batch", nullable=False))
    op.create_check_constraint("lane", "jobs", "lane IN ('batch', 'interactive')")
    op.add_column("jobs", sa.Column("num_preemptions", sa.SmallInteger(), server_default="0", nullable=False))
    op.add_column(
        "reservations", sa.Column("output_before", sa.Integer(), server_default="0", nullable=False)
    )
    op.drop_index("ix_jobs_queued", "jobs")
    op.create_index(
        "ix_jobs_queued",
        "jobs",
        ["model", "lane", "tenant_id", sa.text(_SIZE_CLASS), sa.text("rank DESC"), "id"],
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "ix_jobs_deadlines",
        "jobs",
        ["model", "expires_at"],
        postgresql_where=sa.text("state = 'queued' AND expires_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_deadlines", "jobs")
    op.drop_index("ix_jobs_queued", "jobs")
    op.create_index(
        "ix_jobs_queued",
        "jobs",
        ["model", sa.text("rank DESC"), "id"],
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.drop_column("reservations", "output_before")
    op.drop_column("jobs", "num_preemptions")
    op.drop_column("jobs", "lane")
    op.drop_table("accounts")
    op.drop_column("tenants", "weight")
