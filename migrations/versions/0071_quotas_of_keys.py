"""Quotas of one key: what its unfinished jobs may hold, and which key submitted a job, batch or tree.

Expand only: nullable columns, a check, and indexes of unfinished jobs and of waiting summaries by key, built beside writers. What the release
before stores names no key, and counts towards its tenant alone; so upgrade all processes before keys get quotas.
"""

from alembic import op

from migrations import online

revision = "0071"
down_revision = "0070"
branch_labels = None
depends_on = None

_CHECK = "ck_api_keys_quotas"
_SUBMITTED = ("jobs", "batches", "summaries")
_INDEX = "ix_jobs_unended_of_key"
_IN_LINE = "ix_summaries_refused_of_key"


def upgrade() -> None:
    op.execute("ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS max_jobs integer")
    op.execute("ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS max_enqueued_tokens bigint")
    op.execute(f"ALTER TABLE api_keys DROP CONSTRAINT IF EXISTS {_CHECK}")
    op.execute(
        f"ALTER TABLE api_keys ADD CONSTRAINT {_CHECK} CHECK (max_enqueued_tokens >= 0 AND max_jobs >= 0) NOT VALID"
    )
    online.commit()
    online.validate("api_keys", _CHECK)
    for table in _SUBMITTED:
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS api_key_id uuid")
        online.commit()
    online.create_index(
        _INDEX,
        "jobs",
        ["tenant_id", "api_key_id"],
        include=["reserved_tokens"],
        where="finalized_at IS NULL AND api_key_id IS NOT NULL",
    )
    online.create_index(
        _IN_LINE,
        "summaries",
        ["tenant_id", "api_key_id", "id"],
        where="state = 'preparing' AND refused_demand IS NOT NULL AND api_key_id IS NOT NULL",
    )


def downgrade() -> None:
    online.drop_index(_IN_LINE, "summaries")
    online.drop_index(_INDEX, "jobs")
    for table in reversed(_SUBMITTED):
        op.drop_column(table, "api_key_id", if_exists=True)
    op.drop_column("api_keys", "max_enqueued_tokens", if_exists=True)
    op.drop_column("api_keys", "max_jobs", if_exists=True)
