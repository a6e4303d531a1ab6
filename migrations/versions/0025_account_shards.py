"""What each engine adds to a tenant's account, in a row of its own, so that claims of two engines never wait.

Expand only: workers of the release before charge `accounts` alone, whose sum still counts.
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "account_shards",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("engine_name", sa.Text(), nullable=False),
        sa.Column("served", sa.Double(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_account_shards_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "model", "engine_name", name="pk_account_shards"),
        postgresql_with={"fillfactor": 50},
    )


def downgrade() -> None:
    op.execute(
        "UPDATE accounts SET served = served + shards.sum FROM ("
        " SELECT tenant_id, model, sum(served) FROM account_shards GROUP BY tenant_id, model) AS shards"
        " WHERE accounts.tenant_id = shards.tenant_id AND accounts.model = shards.model"
    )
    op.drop_table("account_shards")
