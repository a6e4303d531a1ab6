"""Browsers that are signed in to the console, and codes that sign in once.

Expand only: two new tables, which the release before does not know.
"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create(
        "console_sessions",
        "token_sha256",
        sa.Column("created_at", _MOMENT, server_default=sa.func.clock_timestamp(), nullable=False),
        sa.Column("used_at", _MOMENT, server_default=sa.func.clock_timestamp(), nullable=False),
    )
    _create("console_sign_in_codes", "code_sha256")


def downgrade() -> None:
    op.drop_table("console_sign_in_codes", if_exists=True)
    op.drop_table("console_sessions", if_exists=True)


_MOMENT = sa.DateTime(timezone=True)


def _create(table: str, digest: str, *columns: sa.Column[object]) -> None:
    op.create_table(
        table,
        sa.Column(digest, sa.LargeBinary(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("api_key_id", sa.Uuid(), nullable=False),
        *columns,
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint(digest, name=op.f(f"pk_{table}")),
        sa.CheckConstraint(f"octet_length({digest}) = 32", name=op.f(f"ck_{table}_sha256")),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f(f"fk_{table}_api_key_id"), ondelete="CASCADE"
        ),
        if_not_exists=True,
    )
    op.create_index(f"ix_{table}_api_key_id", table, ["api_key_id"], if_not_exists=True)
