"""Batches whose lines ask for responses.

Expand only: the check of the endpoint takes one more. Service workers of the release before refuse such a batch.
"""

from alembic import op

from migrations import online

revision = "0048"
down_revision = "0045"
branch_labels = None
depends_on = None

_CHATS = "'/v1/chat/completions', '/v1/completions'"


def upgrade() -> None:
    _allow(f"{_CHATS}, '/v1/responses'")


def downgrade() -> None:
    op.execute("DELETE FROM batches WHERE endpoint = '/v1/responses'")
    _allow(_CHATS)


def _allow(endpoints: str) -> None:
    op.execute("ALTER TABLE batches DROP CONSTRAINT IF EXISTS ck_batches_endpoint")
    op.execute(
        f"ALTER TABLE batches ADD CONSTRAINT ck_batches_endpoint CHECK (endpoint IN ({endpoints})) NOT VALID"
    )
    online.commit()
    online.validate("batches", "ck_batches_endpoint")
