"""The audit log: one row for each change that a caller or an operator makes, with who, when and what.

Expand only: a new table. Processes of the release before write nothing to it. A trigger refuses what would change
the log; rows leave in transactions that say so alone, those at the end of the retention.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0067"
down_revision = "0066"
branch_labels = None
depends_on = None

_CHECKS = {
    "action": "action ~ '^[a-z_]+\\.[a-z_]+$'",
    "details_are_small": "pg_column_size(details) <= 8192",
}
_INDEXES = {
    "tenant_id": ["tenant_id", "id"],
    "action": ["tenant_id", "action", "id"],
    "object_id": ["object_id", "id"],
}
_KEEP = """
CREATE OR REPLACE FUNCTION keep_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('app.audit_sweep', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END $$
"""


def upgrade() -> None:
    texts = ("action", "actor_kind", "actor_id", "actor_name", "via")
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=True),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        sa.Column("actor_tenant_id", sa.Uuid(), nullable=True),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("object_id", "request_id", "address")),
        sa.Column("details", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        *(
            sa.CheckConstraint(condition, name=op.f(f"ck_audit_log_{name}"))
            for name, condition in _CHECKS.items()
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
        if_not_exists=True,
    )
    for name, columns in _INDEXES.items():
        op.create_index(f"ix_audit_log_{name}", "audit_log", columns, if_not_exists=True)
    op.execute(_KEEP)
    op.execute(
        "CREATE OR REPLACE TRIGGER keep BEFORE UPDATE OR DELETE ON audit_log"
        " FOR EACH ROW EXECUTE FUNCTION keep_audit_log()"
    )


def downgrade() -> None:
    # The release before has no log: who needs the entries exports them first.
    op.drop_table("audit_log", if_exists=True)
    op.execute("DROP FUNCTION IF EXISTS keep_audit_log()")
