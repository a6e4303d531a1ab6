"""Numbers of webhook attempts beyond 32,767, and bounds on lost senders and replays.

`webhook_deliveries.attempt` was a smallint. Changing its type would rewrite the log and its indexes under an
exclusive lock. Renaming it and adding an integer under its name only changes the catalog: processes of the
release before keep inserting into `attempt`, and until they are replaced they see no number in rows that they
wrote earlier. The log keeps rows as long as their events (30 days), so nothing is copied; a later release
drops `attempt_before`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_CHECK = "ck_webhook_deliveries_one_attempt"


def upgrade() -> None:
    op.alter_column("webhook_deliveries", "attempt", new_column_name="attempt_before", nullable=True)
    op.add_column("webhook_deliveries", sa.Column("attempt", sa.Integer(), nullable=True))
    op.execute(
        f"ALTER TABLE webhook_deliveries ADD CONSTRAINT {_CHECK}"
        " CHECK (num_nonnulls(attempt, attempt_before) = 1) NOT VALID"
    )
    for name in ("num_lost", "num_replays"):
        column = sa.Column(name, sa.SmallInteger(), server_default="0", nullable=False)
        op.add_column("webhook_dispatches", column)


def downgrade() -> None:
    op.drop_column("webhook_dispatches", "num_replays")
    op.drop_column("webhook_dispatches", "num_lost")
    op.drop_constraint(_CHECK, "webhook_deliveries")
    op.execute(
        "UPDATE webhook_deliveries SET attempt_before = least(attempt, 32767) WHERE attempt IS NOT NULL"
    )
    op.drop_column("webhook_deliveries", "attempt")
    op.alter_column("webhook_deliveries", "attempt_before", new_column_name="attempt", nullable=False)
