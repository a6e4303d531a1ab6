"""Deletion of a tenant with everything that it has, by service workers and in parts.

Expand only: columns that are null or 0 in every row, and an index of the tenants that are being deleted.
"""

from alembic import op

from migrations import online

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None

_COLUMNS = ("deleted_at timestamptz", "num_removed bigint NOT NULL DEFAULT 0", "searched_to uuid")


def upgrade() -> None:
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {column}" for column in _COLUMNS)
    op.execute(f"ALTER TABLE tenants {added}")
    online.commit()
    online.create_index("ix_tenants_deleted", "tenants", ["deleted_at"], where="deleted_at IS NOT NULL")


def downgrade() -> None:
    # A deletion that was ordered ends here: the release before knows none. Its queue stays paused.
    online.drop_index("ix_tenants_deleted", "tenants")
    for column in _COLUMNS:
        op.drop_column("tenants", column.partition(" ")[0], if_exists=True)
