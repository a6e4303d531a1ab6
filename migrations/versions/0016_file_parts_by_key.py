"""Parts are found by their keys, so that bytes which no row names can be swept."""

from migrations import online

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    online.create_index("ix_file_parts_key", "file_parts", ["key"], where="key IS NOT NULL")


def downgrade() -> None:
    online.drop_index("ix_file_parts_key", "file_parts")
