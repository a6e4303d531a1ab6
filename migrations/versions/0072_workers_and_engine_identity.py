"""Worker processes, what an engine is, and when a worker last looked for jobs for it.

A worker whose thread had died looked alive, two workers could share an engine's name for different models, and a dead worker's
reservations looked like a live one's. Expand only: a table and nullable columns.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0072"
down_revision = "0071"
branch_labels = None
depends_on = None

_OF_ENGINES = {"served_model": "text", "tokenizer": "text", "address": "text", "ticked_at": "timestamptz"}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("process", sa.Text()),
        sa.Column("engine_name", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("refusal", sa.Text()),
        sa.Column("late_loops", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column(
            "seen_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("role IN ('inference', 'service')", name="role"),
        if_not_exists=True,
    )
    # Each table by itself: workers read reservations and then write engines.
    online.commit()
    for name, kind in _OF_ENGINES.items():
        op.execute(f"ALTER TABLE engines ADD COLUMN IF NOT EXISTS {name} {kind}")
    online.commit()
    op.execute("ALTER TABLE reservations ADD COLUMN IF NOT EXISTS worker_id uuid")


def downgrade() -> None:
    op.execute("ALTER TABLE reservations DROP COLUMN IF EXISTS worker_id")
    for name in _OF_ENGINES:
        op.execute(f"ALTER TABLE engines DROP COLUMN IF EXISTS {name}")
    op.drop_table("workers", if_exists=True)
