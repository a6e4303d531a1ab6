"""What API processes may let in without summing a tenant's jobs: exact quotas with any number of them.

Expand only: processes of the release before know no allowances and go on as they did.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quota_allowances",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("shard", sa.SmallInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("max_enqueued_tokens", sa.BigInteger(), nullable=False),
        sa.Column("max_jobs", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("tokens >= 0 AND jobs >= 0", name=op.f("ck_quota_allowances_bounds")),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_quota_allowances_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "shard", name=op.f("pk_quota_allowances")),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("quota_allowances", if_exists=True)
