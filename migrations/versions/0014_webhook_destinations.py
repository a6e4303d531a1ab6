"""Webhook destinations with the time at which they are due, so that a claim reads only those due first.

Copies nothing: the new column's constant default marks what waits as unnoticed, and claims notice it.
Processes of the release before know neither; service workers check every few minutes for what those left.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "webhook_destinations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("server_id", sa.Uuid(), nullable=False),
        sa.Column("next_due_at", _MOMENT, nullable=True),
        sa.Column("named_at", _MOMENT, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_destinations_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_destinations")),
    )
    op.create_index(
        "ix_webhook_destinations_due",
        "webhook_destinations",
        ["tenant_id", "next_due_at"],
        postgresql_where=sa.text("next_due_at IS NOT NULL"),
    )
    op.create_index("ix_webhook_destinations_tenant", "webhook_destinations", ["tenant_id"])
    op.create_index("ix_webhook_destinations_server", "webhook_destinations", ["server_id"])
    # Every claim changes the times of the rows that it reads: the index must not keep dead entries.
    op.execute(
        "ALTER TABLE webhook_destinations"
        " SET (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000)"
    )
    op.add_column(
        "webhook_dispatches",
        sa.Column("is_noticed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("webhook_dispatches", "is_noticed")
    op.drop_table("webhook_destinations")
