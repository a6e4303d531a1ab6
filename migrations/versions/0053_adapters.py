"""Adapters (LoRA): what is registered, which one a job asks for, what engines hold, what tenants may name.

Expand only: a new table, and columns that are nullable. Workers of the release before are given no job that asks
for an adapter: their engines have not told that they take `lora`.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None

_COLUMNS = {"jobs": "text", "engines": "text[]", "tenant_limits": "text[]"}


def upgrade() -> None:
    op.create_table(
        "adapters",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("modules", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("removed_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("format IN ('gguf', 'peft')", name=op.f("ck_adapters_format")),
        sa.CheckConstraint("rank >= 1 AND num_bytes >= 1", name=op.f("ck_adapters_sizes")),
        sa.PrimaryKeyConstraint("model", "name", name=op.f("pk_adapters")),
        sa.UniqueConstraint("number", name=op.f("uq_adapters_number")),
        if_not_exists=True,
    )
    for table, kind in _COLUMNS.items():
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS adapter{'s' * (kind != 'text')} {kind}")


def downgrade() -> None:
    online.refuse_while_unfinished("adapter IS NOT NULL", what="an adapter")
    for table, kind in _COLUMNS.items():
        op.drop_column(table, f"adapter{'s' * (kind != 'text')}", if_exists=True)
    op.drop_table("adapters", if_exists=True)
