"""Tenants whose prompts and results go once they were delivered.

Expand only: a column that is null in every row. Service workers of the release before remove nothing of theirs.
"""

from alembic import op

from migrations import online

revision = "0069"
down_revision = "0068"
branch_labels = None
depends_on = None

_CHECK = "ck_tenants_zero_retention_seconds"


def upgrade() -> None:
    op.execute("ALTER TABLE tenants ADD COLUMN IF NOT EXISTS zero_retention_seconds integer")
    op.execute(f"ALTER TABLE tenants DROP CONSTRAINT IF EXISTS {_CHECK}")
    op.execute(f"ALTER TABLE tenants ADD CONSTRAINT {_CHECK} CHECK (zero_retention_seconds > 0) NOT VALID")
    online.commit()
    online.validate("tenants", _CHECK)


def downgrade() -> None:
    op.execute(f"ALTER TABLE tenants DROP CONSTRAINT IF EXISTS {_CHECK}")
    op.drop_column("tenants", "zero_retention_seconds", if_exists=True)
