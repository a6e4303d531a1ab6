"""Hashes of a prompt's beginnings, by which jobs are found that begin alike.

Expand only: processes of the release before leave the column null, and such a prompt is known to share nothing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("texts", sa.Column("prefixes", sa.LargeBinary()), if_not_exists=True)


def downgrade() -> None:
    op.drop_column("texts", "prefixes", if_exists=True)
