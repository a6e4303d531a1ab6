"""How much of its prompt a job's engine had in its cache: callers are told it, and charged for the rest.

Expand only: columns that are nullable or constant, a CHECK that is validated beside writers. Null: not told,
as by workers of the release before; jobs that they started are charged by what was expected.
"""

from alembic import op

from migrations import online

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_CHECK = "ck_jobs_cached_tokens"
_SUMS = ("usage_entries", "usage_days", "batches")


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS cached_tokens integer")
    op.execute(f"ALTER TABLE jobs DROP CONSTRAINT IF EXISTS {_CHECK}")
    op.execute(
        f"ALTER TABLE jobs ADD CONSTRAINT {_CHECK}"
        " CHECK (cached_tokens BETWEEN 0 AND prompt_tokens) NOT VALID"
    )
    online.commit()
    op.execute("ALTER TABLE reservations ADD COLUMN IF NOT EXISTS charged_prompt integer")
    online.commit()
    for table in _SUMS:
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS cached_tokens bigint DEFAULT 0 NOT NULL")
        online.commit()
    online.validate("jobs", _CHECK)


def downgrade() -> None:
    for table in reversed(_SUMS):
        op.drop_column(table, "cached_tokens", if_exists=True)
    op.drop_column("reservations", "charged_prompt", if_exists=True)
    op.drop_column("jobs", "cached_tokens", if_exists=True)
