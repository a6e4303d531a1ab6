"""Triggers that count the bytes of results look up each job by its id.

A trigger keeps its plan until the next ANALYZE of a table. One that was made while `jobs` was small joined the
results to all jobs, so each end of a run read a queue that had filled since.

Waits for no reader or writer.
"""

import sqlalchemy as sa
from alembic import op

revision = "0080"
down_revision = "0079"
branch_labels = None
depends_on = None

_SIZE = (
    "octet_length(output) + octet_length(output_ids) + coalesce(octet_length(reasoning), 0)"
    " + coalesce(octet_length(log_probs), 0) + coalesce(octet_length(tool_calls), 0)"
    " + coalesce(octet_length(embedding), 0)"
)
_JOINED = "SELECT tenant_id, {sign}({size}) AS size FROM {rows} JOIN jobs ON jobs.id = job_id"
_LOOKED_UP = (
    "SELECT (SELECT jobs.tenant_id FROM jobs WHERE jobs.id = job_id) AS tenant_id, {sign}({size}) AS size"
    " FROM {rows}"
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _count(_LOOKED_UP, "SET enable_seqscan = off")
    op.execute("ALTER FUNCTION drop_stored_result() SET enable_seqscan = off")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _count(_JOINED, "")
    op.execute("ALTER FUNCTION drop_stored_result() RESET enable_seqscan")


def _count(select: str, setting: str) -> None:
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema()::text)"))
    for change, signs in {
        "insert": {"after": ""},
        "update": {"after": "", "before": "-"},
        "delete": {"before": "-"},
    }.items():
        rows = " UNION ALL ".join(
            select.format(rows=rows, sign=sign, size=_SIZE) for rows, sign in signs.items()
        )
        op.execute(
            f"CREATE OR REPLACE FUNCTION count_stored_results_{change}() RETURNS trigger LANGUAGE plpgsql"
            f" SECURITY DEFINER SET search_path = {schema}, pg_temp {setting} AS $$ BEGIN"
            f" INSERT INTO stored_notes (tenant_id, num_bytes) SELECT tenant_id, sum(size) FROM ({rows}) AS rows"
            " WHERE tenant_id IS NOT NULL GROUP BY tenant_id HAVING sum(size) <> 0; RETURN NULL; END $$"
        )
