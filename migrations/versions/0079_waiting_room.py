"""Requests that may wait inside an engine for a slot, beyond its slots: the worker writes it at registration.

The default, 0, holds until then. Waits for whoever holds an engine's row, at most five seconds.
"""

from alembic import op

revision = "0079"
down_revision = "0078"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        "ALTER TABLE engines ADD COLUMN IF NOT EXISTS waiting_room integer NOT NULL DEFAULT 0"
        " CONSTRAINT ck_engines_waiting_room CHECK (waiting_room >= 0)"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("engines", "waiting_room", if_exists=True)
