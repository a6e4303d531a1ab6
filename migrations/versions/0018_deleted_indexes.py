"""Indexes that find at once what is deleted in parts."""

from migrations import online

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("summaries", "webhook_endpoints"):
        online.create_index(f"ix_{table}_deleted", table, ["deleted_at"], where="deleted_at IS NOT NULL")
    online.validate("summaries", "ck_summaries_deleted_has_ended")
    online.validate("webhook_endpoints", "ck_webhook_endpoints_deleted_is_disabled")


def downgrade() -> None:
    for table in ("summaries", "webhook_endpoints"):
        online.drop_index(f"ix_{table}_deleted", table)
