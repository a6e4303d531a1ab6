"""Findings count towards what their tenants keep, and rows of `summaries` are found by what they are for.

Triggers as those of revision 0029 count what processes of any release write. The findings that are there are
counted in the transaction that makes the triggers, while their writers wait: some milliseconds for ten thousand.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None

_SIZE = (
    "octet_length(gaps::text) + coalesce(octet_length(value::text), 0) + coalesce(octet_length(quote), 0)"
    " + coalesce(octet_length(error::text), 0) + coalesce(octet_length(sources::text), 0)"
)
# A tenant's change of size, of the rows that a statement wrote.
_CHANGES = {
    "insert": ("REFERENCING NEW TABLE AS after", {"after": ""}),
    "update": ("REFERENCING OLD TABLE AS before NEW TABLE AS after", {"after": "", "before": "-"}),
    "delete": ("REFERENCING OLD TABLE AS before", {"before": "-"}),
}
_IS_COUNTED = sa.text("SELECT to_regprocedure('count_stored_findings_insert()') IS NOT NULL")


def upgrade() -> None:
    if not op.get_bind().scalar(_IS_COUNTED):
        op.execute("LOCK TABLE findings IN SHARE ROW EXCLUSIVE MODE")
        _create_triggers()
        op.execute(_note(f"SELECT tenant_id, {_SIZE} AS size FROM findings"))
    online.commit()
    online.create_index("ix_summaries_purpose", "summaries", ["tenant_id", "purpose", "id"])


def downgrade() -> None:
    online.drop_index("ix_summaries_purpose", "summaries")
    if op.get_bind().scalar(_IS_COUNTED):
        op.execute("LOCK TABLE findings IN SHARE ROW EXCLUSIVE MODE")
        for change in _CHANGES:
            op.execute(f"DROP TRIGGER IF EXISTS stored_{change} ON findings")
            op.execute(f"DROP FUNCTION IF EXISTS count_stored_findings_{change}()")
        op.execute(_note(f"SELECT tenant_id, -({_SIZE}) AS size FROM findings"))


def _create_triggers() -> None:
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema()::text)"))
    for change, (tables, signs) in _CHANGES.items():
        name = f"count_stored_findings_{change}"
        rows = " UNION ALL ".join(
            f"SELECT tenant_id, {sign}({_SIZE}) AS size FROM {rows}" for rows, sign in signs.items()
        )
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
            f" SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$ BEGIN {_note(rows)}; RETURN NULL; END $$"
        )
        op.execute(
            f"CREATE TRIGGER stored_{change} AFTER {change.upper()} ON findings {tables}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
        )


def _note(rows: str) -> str:
    return (
        f"INSERT INTO stored_notes (tenant_id, num_bytes) SELECT tenant_id, sum(size) FROM ({rows}) AS rows"
        " GROUP BY tenant_id HAVING sum(size) <> 0"
    )
