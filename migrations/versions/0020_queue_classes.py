"""Queued jobs by size and need, so that an engine skips those that never fit it.

The former indexes are dropped afterwards: until they stop, workers of the release before claim correctly
without them, but slowly where the queue is long.
"""

import sqlalchemy as sa

from migrations import online

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_OLD_SIZE = "width_bucket(prompt_tokens, '{2048,4096,8192,16384,32768,65536}'::integer[])"
_CLASS = sa.text(
    "(width_bucket(prompt_tokens, '{2048,4096,8192,16384,32768,65536,96001}'::integer[]) * 16"
    " + width_bucket(prompt_tokens + max_tokens, '{8193,16385,32769,65537,131073,262145}'::integer[]))"
)
_QUEUED = "state = 'queued'"
_EXPIRING = "state = 'queued' AND expires_at IS NOT NULL"
_OWNER = ["model", "lane", "tenant_id"]


def upgrade() -> None:
    online.create_index(
        "ix_jobs_queued_by_class", "jobs", [*_OWNER, _CLASS, sa.text("rank DESC"), "id"], where=_QUEUED
    )
    online.create_index("ix_jobs_expiring_by_class", "jobs", [*_OWNER, _CLASS, "expires_at"], where=_EXPIRING)
    online.drop_index("ix_jobs_queued", "jobs")
    online.drop_index("ix_jobs_deadlines", "jobs")


def downgrade() -> None:
    size = sa.text(_OLD_SIZE)
    online.create_index("ix_jobs_deadlines", "jobs", ["model", "expires_at"], where=_EXPIRING)
    online.create_index("ix_jobs_queued", "jobs", [*_OWNER, size, sa.text("rank DESC"), "id"], where=_QUEUED)
    online.drop_index("ix_jobs_expiring_by_class", "jobs")
    online.drop_index("ix_jobs_queued_by_class", "jobs")
