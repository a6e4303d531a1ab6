"""Presentations in the OpenDocument format: their kind.

Expand only: the release before makes no such documents, and reads none, since its workers refuse their bytes.
"""

from alembic import op

revision = "0077"
down_revision = "0076"
branch_labels = None
depends_on = None

_BEFORE = (
    "'docx', 'eml', 'epub', 'html', 'jpg', 'md', 'msg', 'ods', 'odt', 'pdf', 'png', 'pptx', 'rtf', 'tiff',"
    " 'txt', 'xls', 'xlsx'"
)
_AFTER = f"{_BEFORE}, 'odp'"


def upgrade() -> None:
    _replace(_AFTER)
    op.execute("ALTER TABLE documents VALIDATE CONSTRAINT ck_documents_kind")


def downgrade() -> None:
    _replace(_BEFORE)  # not validated: documents of the new kind stay, and expire


def _replace(kinds: str) -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE documents DROP CONSTRAINT IF EXISTS ck_documents_kind")
    op.execute(f"ALTER TABLE documents ADD CONSTRAINT ck_documents_kind CHECK (kind IN ({kinds})) NOT VALID")
