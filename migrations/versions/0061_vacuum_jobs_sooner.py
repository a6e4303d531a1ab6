"""Dead rows of `jobs` are removed after 500, no longer after 5,000.

A server that answers a job a second leaves 5,000 in half an hour, and Postgres forgets how many there are when
it crashes: one that crashed every few minutes was never vacuumed, and the table grew with each job. Where a
thousand jobs end in a minute, either number is reached between two looks of autovacuum.

Waits for no reader or writer of the table.
"""

from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs SET (autovacuum_vacuum_threshold = 500)")


def downgrade() -> None:
    op.execute("ALTER TABLE jobs SET (autovacuum_vacuum_threshold = 5000)")
