"""Choices: which of several answers to one request a job is.

Expand only: columns that are nullable or constant. What processes of the release before submit has one choice.
"""

from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS choice smallint DEFAULT 0 NOT NULL")
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS num_choices smallint")


def downgrade() -> None:
    for column in ("num_choices", "choice"):
        op.drop_column("jobs", column, if_exists=True)
