"""What each tenant keeps in the database, counted by triggers, and limits of it.

Expand only: triggers count what processes of any release store and delete. Rows that were there before are
counted in the snapshot in which their table's triggers began, while the table is written. An upgrade that found
a table locked goes on with that table; one that died while it counted begins anew.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_TEXT_BYTES = (
    "octet_length(body) + coalesce(octet_length(token_ids), 0) + coalesce(octet_length(prefixes), 0)"
)
_RESULT_BYTES = "octet_length(output) + octet_length(output_ids) + coalesce(octet_length(reasoning), 0)"
# By table: the size of a row, and where its tenant is.
_COUNTED = {
    "texts": (_TEXT_BYTES, ""),
    "file_parts": ("coalesce(octet_length(content), num_bytes)", ""),
    "document_texts": ("octet_length(body)", ""),
    "results": (_RESULT_BYTES, " JOIN jobs ON jobs.id = job_id"),
}
# A tenant's change of size, of the rows that a statement wrote.
_CHANGES = {
    "INSERT": ("REFERENCING NEW TABLE AS after", {"after": ""}),
    "UPDATE": ("REFERENCING OLD TABLE AS before NEW TABLE AS after", {"after": "", "before": "-"}),
    "DELETE": ("REFERENCING OLD TABLE AS before", {"before": "-"}),
}


_COUNTED_MARK = "counted"
_PROGRESS = sa.text("""
    SELECT to_regprocedure(:function) IS NOT NULL, obj_description(to_regprocedure(:function), 'pg_proc')
""")


def upgrade() -> None:
    left = _left_to_count()
    if left is None or len(left) == len(_COUNTED):
        _begin()
        left = list(_COUNTED)
    for table in left:
        _count(table)


def _left_to_count() -> list[str] | None:
    """List the tables that no earlier attempt counted; None: one died while it counted a table."""
    left = []
    for table in _COUNTED:
        function = f"count_stored_{table}_insert()"
        is_begun, mark = op.get_bind().execute(_PROGRESS, {"function": function}).one()
        if is_begun and mark != _COUNTED_MARK:
            return None
        if not is_begun:
            left.append(table)
    return left


def _begin() -> None:
    _drop_triggers()
    _create_tables()
    for table in ("stored_notes", "stored_totals"):
        op.execute(f"DELETE FROM {table}")
    online.commit()
    # A result's tenant is known by its job, so it goes first. (A cascade would come too late.)
    op.execute(
        f"CREATE FUNCTION drop_stored_result() {_as_owner()} AS $$ BEGIN"
        " DELETE FROM results WHERE job_id = OLD.id; RETURN OLD; END $$"
    )
    op.execute(
        "CREATE TRIGGER stored BEFORE DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION drop_stored_result()"
    )
    online.commit()


def downgrade() -> None:
    _drop_triggers()
    op.drop_table("stored_totals", if_exists=True)
    op.drop_table("stored_notes", if_exists=True)
    for name in ("stored_bytes", "max_stored_bytes"):
        op.drop_column("quota_allowances", name, if_exists=True)
    op.drop_column("tenant_limits", "max_stored_bytes", if_exists=True)


def _create_tables() -> None:
    op.create_table(
        "stored_totals",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_stored_totals_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_stored_totals")),
        if_not_exists=True,
    )
    op.create_table(
        "stored_notes",
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stored_notes")),
        if_not_exists=True,
    )
    op.create_index("ix_stored_notes_tenant_id", "stored_notes", ["tenant_id"], if_not_exists=True)
    op.execute("ALTER TABLE tenant_limits ADD COLUMN IF NOT EXISTS max_stored_bytes bigint")
    for name in ("stored_bytes", "max_stored_bytes"):
        op.execute(f"ALTER TABLE quota_allowances ADD COLUMN IF NOT EXISTS {name} bigint DEFAULT 0 NOT NULL")


def _count(table: str) -> None:
    """Let triggers count what is written to the table, and count what it has.

    Its writers wait while the triggers are made, not while its rows are counted.
    """
    size, owner = _COUNTED[table]
    bind = op.get_bind()
    op.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    for change, (tables, signs) in _CHANGES.items():
        name = f"count_stored_{table}_{change.lower()}"
        rows = " UNION ALL ".join(
            f"SELECT tenant_id, {sign}({size}) AS size FROM {rows}{owner}" for rows, sign in signs.items()
        )
        op.execute(f"CREATE FUNCTION {name}() {_as_owner()} AS $$ BEGIN {_note(rows)}; RETURN NULL; END $$")
        op.execute(
            f"CREATE TRIGGER stored_{change.lower()} AFTER {change} ON {table} {tables}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
        )
    snapshot = bind.scalar(sa.text("SELECT pg_export_snapshot()"))
    # A connection besides those of the pool, which may have one alone.
    with sa.create_engine(bind.engine.url, poolclass=sa.NullPool).connect() as counting:
        counting.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        counting.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        counting.exec_driver_sql(
            "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
        )
        online.commit()
        counting.exec_driver_sql(_note(f"SELECT tenant_id, {size} AS size FROM {table}{owner}"))
        mark = f"COMMENT ON FUNCTION count_stored_{table}_insert() IS '{_COUNTED_MARK}'"
        counting.exec_driver_sql(mark)  # with the notes, or not at all
        counting.commit()


def _as_owner() -> str:
    """Return the clauses of a trigger's function; a caller's temporary tables do not hide ours from it."""
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema()::text)"))
    return f"RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp"


def _note(rows: str) -> str:
    return (
        f"INSERT INTO stored_notes (tenant_id, num_bytes) SELECT tenant_id, sum(size) FROM ({rows}) AS rows"
        " GROUP BY tenant_id HAVING sum(size) <> 0"
    )


def _drop_triggers() -> None:
    for table in _COUNTED:
        for change in _CHANGES:
            op.execute(f"DROP TRIGGER IF EXISTS stored_{change.lower()} ON {table}")
            op.execute(f"DROP FUNCTION IF EXISTS count_stored_{table}_{change.lower()}()")
        online.commit()
    op.execute("DROP TRIGGER IF EXISTS stored ON jobs")
    op.execute("DROP FUNCTION IF EXISTS drop_stored_result()")
    online.commit()
