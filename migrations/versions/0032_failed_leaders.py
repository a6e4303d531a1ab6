"""How equal requests failed, so that those that wait for one end as it did however many they are.

Expand only: an index of failed runs that others may wait for, built beside writers.
"""

from migrations import online

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    where = "request_digest IS NOT NULL AND state = 'failed'"
    online.create_index("ix_jobs_refused", "jobs", ["request_digest", "finalized_at"], where=where)


def downgrade() -> None:
    online.drop_index("ix_jobs_refused", "jobs")
