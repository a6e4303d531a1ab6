"""Equal requests run once: what makes requests equal, and which jobs wait for an equal one.

Expand only: processes of the release before insert jobs that run by themselves. A leader that one of them ends
leaves its twins to the rounds of a service worker. The columns change the catalog alone; the indexes hold only
jobs that were submitted after this.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_HAS_DIGEST = "request_digest IS NOT NULL AND state"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("request_digest", sa.LargeBinary()), if_not_exists=True)
    op.add_column(
        "jobs",
        sa.Column("has_twins", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        if_not_exists=True,
    )
    online.create_index(
        "uq_jobs_leader",
        "jobs",
        ["request_digest"],
        where=f"{_HAS_DIGEST} IN ('preparing', 'queued', 'running')",
        is_unique=True,
    )
    online.create_index("ix_jobs_twins", "jobs", ["request_digest", "id"], where=f"{_HAS_DIGEST} = 'blocked'")
    online.create_index(
        "ix_jobs_shared", "jobs", ["request_digest", "finalized_at"], where=f"{_HAS_DIGEST} = 'completed'"
    )


def downgrade() -> None:
    online.drop_index("uq_jobs_leader", "jobs")
    # Twins then run by themselves.
    online.execute(f"UPDATE jobs SET state = 'preparing' WHERE {_HAS_DIGEST} = 'blocked'")
    for name in ("ix_jobs_shared", "ix_jobs_twins"):
        online.drop_index(name, "jobs")
    op.drop_column("jobs", "has_twins", if_exists=True)
    op.drop_column("jobs", "request_digest", if_exists=True)
