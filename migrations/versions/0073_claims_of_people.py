"""Claims of people in the console: what the rules look at, so that a changed rule holds at once.

Expand only: a nullable column. A session from before has no claims, so its person signs in again.
"""

from alembic import op

revision = "0073"
down_revision = "0072"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE console_sessions ADD COLUMN IF NOT EXISTS person_claims jsonb")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE console_sessions DROP COLUMN IF EXISTS person_claims")
