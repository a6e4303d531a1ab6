"""What prompts of one tenant begin with, so that jobs which share a document follow each other.

Expand only: columns that are nullable or constant, an index built beside writers. Jobs that were counted
before have no family and are packed as before. Workers of the release before book shared blocks whole.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_QUEUED = "state = 'queued' AND family IS NOT NULL"
_CHECK = "ck_reservations_shared_blocks"


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS family bytea")
    online.commit()
    op.execute("ALTER TABLE reservations ADD COLUMN IF NOT EXISTS shared_blocks integer DEFAULT 0 NOT NULL")
    op.execute(f"ALTER TABLE reservations DROP CONSTRAINT IF EXISTS {_CHECK}")
    op.create_check_constraint(op.f(_CHECK), "reservations", "shared_blocks BETWEEN 0 AND blocks")
    columns = ["model", "lane", "tenant_id", "family", sa.text("rank DESC"), "id"]
    online.create_index("ix_jobs_queued_by_family", "jobs", columns, where=_QUEUED)


def downgrade() -> None:
    online.drop_index("ix_jobs_queued_by_family", "jobs")
    op.drop_column("reservations", "shared_blocks", if_exists=True)
    op.drop_column("jobs", "family", if_exists=True)
