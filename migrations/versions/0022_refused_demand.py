"""What a summary's draft takes of a full quota, so that its documents are not cut again at every poll.

Expand only: workers of the release before neither read nor write it.
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE summaries ADD COLUMN IF NOT EXISTS refused_demand jsonb")


def downgrade() -> None:
    op.drop_column("summaries", "refused_demand", if_exists=True)
