"""Every row of the delivery log has one number: checked while the log is written."""

from migrations import online

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    online.validate("webhook_deliveries", "ck_webhook_deliveries_one_attempt")


def downgrade() -> None:
    pass  # 0011 drops it
