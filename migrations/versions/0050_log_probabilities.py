"""The log probabilities of answers' tokens, kept with checkpoints and results, and counted with what is stored.

Expand only: columns that are nullable, and triggers that count them. Workers of the release before write none,
and are given no job that asks for them: their engines have not told that they take `logprobs`.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

_BEFORE = "octet_length(output) + octet_length(output_ids) + coalesce(octet_length(reasoning), 0)"
_SINCE = f"{_BEFORE} + coalesce(octet_length(log_probs), 0)"


def upgrade() -> None:
    for table in ("checkpoints", "results"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS log_probs bytea")
        op.execute(f"ALTER TABLE {table} ALTER COLUMN log_probs SET STORAGE EXTERNAL")
        online.commit()
    _count_by(_SINCE)


def downgrade() -> None:
    op.execute("UPDATE results SET log_probs = NULL WHERE log_probs IS NOT NULL")
    _count_by(_BEFORE)
    for table in ("results", "checkpoints"):
        op.drop_column(table, "log_probs", if_exists=True)


def _count_by(size: str) -> None:
    """Let the triggers of revision 0029 count rows of results by this size; all rows that are there have the same."""
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
