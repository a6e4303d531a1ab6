"""A limit of requests for one key, below that of its tenant.

Expand only: a nullable column and a check of it. API processes of the release before go on counting by tenant
alone.
"""

from alembic import op

from migrations import online

revision = "0063"
down_revision = "0062"
branch_labels = None
depends_on = None

_CHECK = "ck_api_keys_max_requests"


def upgrade() -> None:
    op.execute("ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS max_requests integer")
    op.execute(f"ALTER TABLE api_keys DROP CONSTRAINT IF EXISTS {_CHECK}")
    op.execute(f"ALTER TABLE api_keys ADD CONSTRAINT {_CHECK} CHECK (max_requests >= 1) NOT VALID")
    online.commit()
    online.validate("api_keys", _CHECK)


def downgrade() -> None:
    op.drop_column("api_keys", "max_requests", if_exists=True)
