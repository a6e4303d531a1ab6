"""Embeddings: the vectors of inputs, and batches whose lines ask for them.

Expand only: nullable columns, which the triggers of stored bytes count; the check of the endpoint takes one more.
Service workers of the release before refuse such a batch.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None

_TABLES = ("results", "checkpoints")
_ENDPOINTS = "'/v1/chat/completions', '/v1/completions', '/v1/responses'"
_BEFORE = (
    "octet_length(output) + octet_length(output_ids) + coalesce(octet_length(reasoning), 0)"
    " + coalesce(octet_length(log_probs), 0) + coalesce(octet_length(tool_calls), 0)"
)
_SINCE = f"{_BEFORE} + coalesce(octet_length(embedding), 0)"


def upgrade() -> None:
    for table in _TABLES:
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS embedding bytea")
        online.commit()
    # Floats hardly compress, so trying to costs time alone.
    op.execute("ALTER TABLE results ALTER COLUMN embedding SET STORAGE EXTERNAL")
    online.commit()
    _count_by(_SINCE)
    online.commit()
    _allow(f"{_ENDPOINTS}, '/v1/embeddings'")


def downgrade() -> None:
    op.execute("UPDATE results SET embedding = NULL WHERE embedding IS NOT NULL")
    _count_by(_BEFORE)
    op.execute("DELETE FROM batches WHERE endpoint = '/v1/embeddings'")
    _allow(_ENDPOINTS)
    for table in reversed(_TABLES):
        op.drop_column(table, "embedding", if_exists=True)


def _allow(endpoints: str) -> None:
    op.execute("ALTER TABLE batches DROP CONSTRAINT IF EXISTS ck_batches_endpoint")
    op.execute(
        f"ALTER TABLE batches ADD CONSTRAINT ck_batches_endpoint CHECK (endpoint IN ({endpoints})) NOT VALID"
    )
    online.commit()
    online.validate("batches", "ck_batches_endpoint")


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
