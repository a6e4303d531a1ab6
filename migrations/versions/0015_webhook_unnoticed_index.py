"""The index of dispatches that no claim has noticed yet, built while they are written."""

from migrations import online

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_INDEX = "ix_webhook_dispatches_unnoticed"


def upgrade() -> None:
    online.create_index(
        _INDEX, "webhook_dispatches", ["tenant_id", "id"], where="state = 'pending' AND NOT is_noticed"
    )


def downgrade() -> None:
    online.drop_index(_INDEX, "webhook_dispatches")
