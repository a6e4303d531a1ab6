"""Turns: leases, attempt counters and waiting times for the work that serves all tenants.

Expand only: workers of the release before keep taking their rows without a lease. Each table is changed in a
transaction of its own: with two of them locked, one that is busy would hold up writers of both.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# The columns of each table, nullable or with a constant default; then the state in which its rows wait.
_COLUMNS = {
    "jobs": "num_preparations smallint NOT NULL DEFAULT 0",
    "summaries": "num_plannings smallint NOT NULL DEFAULT 0, lease_id uuid, lease_expires_at timestamptz",
    "batches": "num_validations smallint NOT NULL DEFAULT 0, num_failures smallint NOT NULL DEFAULT 0,"
    " lease_id uuid, lease_expires_at timestamptz, run_after timestamptz",
    "documents": "run_after timestamptz",
}
_WAITS = {
    "jobs": ("preparing", "run_after"),
    "summaries": ("preparing", "plan_after"),
    "batches": ("validating", "run_after"),
    "documents": ("extracting", "run_after"),
}
_CHECKS = {
    "ck_summaries_lease_whole": ("summaries", "(lease_id IS NULL) = (lease_expires_at IS NULL)"),
    "ck_summaries_lease_while_preparing": ("summaries", "lease_id IS NULL OR state = 'preparing'"),
    "ck_batches_lease_whole": ("batches", "(lease_id IS NULL) = (lease_expires_at IS NULL)"),
    "ck_batches_lease_while_validating": ("batches", "lease_id IS NULL OR state = 'validating'"),
}


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("served_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paused_until", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind <> ''", name=op.f("ck_turns_kind")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_turns_tenant_id")),
        sa.PrimaryKeyConstraint("kind", "tenant_id", name=op.f("pk_turns")),
        if_not_exists=True,
    )
    for table in _COLUMNS:
        online.commit()  # the changes to the table before, so that no two are locked at once
        _add(table)
    for name, (table, _) in _CHECKS.items():
        online.validate(table, name)
    _abandon_growing_inputs()
    for table, (state, later) in _WAITS.items():
        waits = f"state = '{state}' AND lease_id IS"
        online.create_index(
            f"ix_{table}_waiting", table, ["tenant_id", "id"], where=f"{waits} NULL AND {later} IS NULL"
        )
        online.create_index(f"ix_{table}_held", table, ["tenant_id"], where=f"{waits} NOT NULL")
        online.create_index(
            f"ix_{table}_put_off", table, [later], where=f"{waits} NULL AND {later} IS NOT NULL"
        )


def downgrade() -> None:
    for table in _WAITS:
        for name in ("put_off", "held", "waiting"):
            online.drop_index(f"ix_{table}_{name}", table)
    # The release before does not know leases on jobs that are being counted.
    online.execute("UPDATE jobs SET lease_id = NULL, lease_expires_at = NULL WHERE state = 'preparing'")
    for table, columns in _COLUMNS.items():
        checks = [f"DROP CONSTRAINT IF EXISTS {name}" for name, (its, _) in _CHECKS.items() if its == table]
        drops = [f"DROP COLUMN IF EXISTS {column.split()[0]}" for column in columns.split(", ")]
        op.execute(f"ALTER TABLE {table} {', '.join(checks + drops)}")
        online.commit()
    op.drop_table("turns", if_exists=True)


def _add(table: str) -> None:
    """Add the table's columns, and its CHECKs for rows written from now on."""
    for column in _COLUMNS[table].split(", "):
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column}")
    for name, (its, condition) in _CHECKS.items():
        if its == table:
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}")
            op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({condition}) NOT VALID")


def _abandon_growing_inputs() -> None:
    """Delete input files of retried batches that ended before filling them.

    No request could remove those.
    """
    online.execute(
        "UPDATE files SET state = 'deleted', deleted_at = clock_timestamp() FROM batches"
        " WHERE files.state = 'growing' AND batches.input_file_id = files.id"
        " AND batches.state IN ('failed', 'completed', 'expired', 'cancelled')"
    )
