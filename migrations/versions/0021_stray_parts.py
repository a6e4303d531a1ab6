"""The installation's random name, and notes of parts that no row names: each goes a week after its note.

Expand only: service workers of the release before sweep without notes, until a worker of this one has
claimed the store under the new name.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("is_only", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.CheckConstraint("is_only", name=op.f("ck_installation_only")),
        sa.PrimaryKeyConstraint("is_only", name=op.f("pk_installation")),
    )
    op.create_table(
        "stray_parts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("seen_in", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_stray_parts")),
    )
    op.create_index("ix_stray_parts_seen_at", "stray_parts", ["seen_at"])


def downgrade() -> None:
    op.drop_table("stray_parts")
    op.drop_table("installation")
