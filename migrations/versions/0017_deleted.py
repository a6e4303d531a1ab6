"""Large summaries and endpoints are deleted in parts: first marked, which hides them.

Expand only: code of the revision before shows what is marked until it is swept.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_CHECKS = {
    "summaries": ("ck_summaries_deleted_has_ended", "deleted_at IS NULL OR finalized_at IS NOT NULL"),
    "webhook_endpoints": (
        "ck_webhook_endpoints_deleted_is_disabled",
        "deleted_at IS NULL OR disabled_at IS NOT NULL",
    ),
}


def upgrade() -> None:
    for table, (name, condition) in _CHECKS.items():
        op.add_column(table, sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
        op.create_check_constraint(op.f(name), table, condition, postgresql_not_valid=True)


def downgrade() -> None:
    # Deleted rows must not reappear.
    op.execute("DELETE FROM jobs WHERE summary_id IN (SELECT id FROM summaries WHERE deleted_at IS NOT NULL)")
    for table, (name, _) in _CHECKS.items():
        op.execute(f"DELETE FROM {table} WHERE deleted_at IS NOT NULL")
        op.drop_constraint(op.f(name), table)
        op.drop_column(table, "deleted_at")
