"""Statistics of `jobs` are fresh after 500 changes, no longer after 5,000.

Postgres plans each statement of a tick from these statistics. The roles of the API and of workers own no table,
so only autovacuum can analyse one. A queue of fewer than 5,000 jobs had no statistics.

Waits for no reader or writer of the table.
"""

from alembic import op

revision = "0078"
down_revision = "0077"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE jobs SET (autovacuum_analyze_threshold = 500)")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE jobs SET (autovacuum_analyze_threshold = 5000)")
