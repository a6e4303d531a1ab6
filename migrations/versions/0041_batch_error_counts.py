"""How many lines of a batch's error file have which code, so that nobody has to read the file to know.

Expand only: a column with a constant default, which rewrites nothing. Lines that workers of the release
before write to an error file are not counted.
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE batches ADD COLUMN IF NOT EXISTS error_counts jsonb DEFAULT '{}' NOT NULL")


def downgrade() -> None:
    op.drop_column("batches", "error_counts", if_exists=True)
