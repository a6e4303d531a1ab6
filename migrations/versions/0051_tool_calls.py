"""Calls of functions: what an answer calls, and that it ended there.

Expand only: nullable columns, which the triggers of stored bytes count; the CHECK of a finish reason takes one
more value, and is validated beside writers.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

_CHECK = "ck_jobs_finish_reason"
_TABLES = ("results", "checkpoints")
_BEFORE = (
    "octet_length(output) + octet_length(output_ids) + coalesce(octet_length(reasoning), 0)"
    " + coalesce(octet_length(log_probs), 0)"
)
_SINCE = f"{_BEFORE} + coalesce(octet_length(tool_calls), 0)"


def upgrade() -> None:
    for table in _TABLES:
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS tool_calls text")
        online.commit()
    _count_by(_SINCE)
    online.commit()
    _allow("'length', 'stop', 'tool_calls'")


def downgrade() -> None:
    op.execute("UPDATE results SET tool_calls = NULL WHERE tool_calls IS NOT NULL")
    _count_by(_BEFORE)
    op.execute("UPDATE jobs SET finish_reason = 'stop' WHERE finish_reason = 'tool_calls'")
    _allow("'length', 'stop'")
    for table in reversed(_TABLES):
        op.drop_column(table, "tool_calls", if_exists=True)


def _allow(reasons: str) -> None:
    op.execute(f"ALTER TABLE jobs DROP CONSTRAINT IF EXISTS {_CHECK}")
    op.execute(f"ALTER TABLE jobs ADD CONSTRAINT {_CHECK} CHECK (finish_reason IN ({reasons})) NOT VALID")
    online.validate("jobs", _CHECK)


def _count_by(size: str) -> None:
    """Let the triggers of revision 0029 count rows of results by this size."""
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema()::text)"))
    for change, signs in {
        "insert": {"after": ""},
        "update": {"after": "", "before": "-"},
        "delete": {"before": "-"},
    }.items():
        rows = " UNION ALL ".join(
            f"SELECT tenant_id, {sign}({size}) AS size FROM {rows} JOIN jobs ON jobs.id = job_id"
            for rows, sign in signs.items()
        )
        op.execute(
            f"CREATE OR REPLACE FUNCTION count_stored_results_{change}() RETURNS trigger LANGUAGE plpgsql"
            f" SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$ BEGIN"
            f" INSERT INTO stored_notes (tenant_id, num_bytes) SELECT tenant_id, sum(size) FROM ({rows}) AS rows"
            " GROUP BY tenant_id HAVING sum(size) <> 0; RETURN NULL; END $$"
        )
