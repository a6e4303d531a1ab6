"""What callers ask of documents counts towards what they keep: questions, schemas with their joins, instructions.

A request with 20,000 characters of questions about 1,000 documents stores them 1,000 times. Triggers as those of
revision 0029 count what processes of any release write. Rows of summaries change with each of their jobs, so the
trigger of updates is one of rows, which fires for the counted columns alone. The rows that are there are counted
in the transaction that makes the triggers, while their writers wait.
"""

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None

_COLUMNS = ("questions", "schema", "joins", "instructions", "focus", "fault", "gaps")
_IS_COUNTED = sa.text("SELECT to_regprocedure('count_stored_summaries_insert()') IS NOT NULL")


def upgrade() -> None:
    if op.get_bind().scalar(_IS_COUNTED):
        return
    op.execute("LOCK TABLE summaries IN SHARE ROW EXCLUSIVE MODE")
    _trigger("insert", "REFERENCING NEW TABLE AS after FOR EACH STATEMENT", _summed("after"))
    _trigger("delete", "REFERENCING OLD TABLE AS before FOR EACH STATEMENT", _summed("before", sign="-"))
    _trigger(
        "update",
        f"FOR EACH ROW WHEN ({' OR '.join(map(_differs, _COLUMNS))})",
        f"SELECT NEW.tenant_id, {_size('NEW')} - ({_size('OLD')})",
        of=f" OF {', '.join(_COLUMNS)}",
    )
    op.execute(_note(_summed("summaries")))


def downgrade() -> None:
    if not op.get_bind().scalar(_IS_COUNTED):
        return
    op.execute("LOCK TABLE summaries IN SHARE ROW EXCLUSIVE MODE")
    for change in ("insert", "update", "delete"):
        op.execute(f"DROP TRIGGER IF EXISTS stored_{change} ON summaries")
        op.execute(f"DROP FUNCTION IF EXISTS count_stored_summaries_{change}()")
    op.execute(_note(_summed("summaries", sign="-")))


def _trigger(change: str, when: str, rows: str, *, of: str = "") -> None:
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema()::text)"))
    name = f"count_stored_summaries_{change}"
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
        f" SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$ BEGIN {_note(rows)}; RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE TRIGGER stored_{change} AFTER {change.upper()}{of} ON summaries {when} EXECUTE FUNCTION {name}()"
    )


def _note(rows: str) -> str:
    """Write a statement that notes what each tenant of these rows keeps more, or less."""
    return (
        "INSERT INTO stored_notes (tenant_id, num_bytes)"
        f" SELECT tenant_id, size FROM ({rows}) AS rows (tenant_id, size) WHERE size <> 0"
    )


def _summed(rows: str, *, sign: str = "") -> str:
    return f"SELECT tenant_id, {sign}sum({_size('each')}) FROM {rows} AS each GROUP BY tenant_id"


def _size(row: str) -> str:
    return " + ".join(f"coalesce(octet_length({row}.{name}::text), 0)" for name in _COLUMNS)


def _differs(name: str) -> str:
    # Of JSON, unlike JSONB, there is no equality.
    return f"OLD.{name}::text IS DISTINCT FROM NEW.{name}::text"
