"""What a model thought before it answered, apart from its answer, and how many tokens that took.

Expand only: workers of the release before write neither, and put thinking into the output as they always did.
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_TABLES = ("results", "checkpoints")


def upgrade() -> None:
    for table in _TABLES:
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS reasoning text")
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS reasoning_tokens integer DEFAULT 0 NOT NULL"
        )
    op.execute("ALTER TABLE batches ADD COLUMN IF NOT EXISTS reasoning_tokens bigint DEFAULT 0 NOT NULL")


def downgrade() -> None:
    op.drop_column("batches", "reasoning_tokens", if_exists=True)
    for table in _TABLES:
        op.drop_column(table, "reasoning_tokens", if_exists=True)
        op.drop_column(table, "reasoning", if_exists=True)
