"""Engines and tenants' queues that an operator pauses, and the scope of the keys that may.

Expand only: nullable columns, a wider CHECK, an index of a small table. No existing key has the new scope.
Workers of the release before start jobs in spite of a halt.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_TABLES = ("engines", "tenants")
_COLUMNS = ("halt", "halted_reason", "halted_by", "halted_by_name")
_SCOPES = "ck_api_keys_scopes"


def upgrade() -> None:
    for table in _TABLES:
        added = ", ".join(f"ADD COLUMN IF NOT EXISTS {name} text" for name in _COLUMNS)
        op.execute(f"ALTER TABLE {table} {added}, ADD COLUMN IF NOT EXISTS halted_since timestamptz")
        for name, condition in (
            ("halt", "halt IN ('drain', 'pause')"),
            ("halt_complete", "num_nulls(halt, halted_reason, halted_by_name, halted_since) IN (0, 4)"),
        ):
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS ck_{table}_{name}")
            op.create_check_constraint(op.f(f"ck_{table}_{name}"), table, condition)
        online.commit()
    _allow_scopes("'admin', 'operator', 'read', 'submit'")
    online.create_index("ix_tenants_halted", "tenants", ["id"], where="halt IS NOT NULL")


def downgrade() -> None:
    online.drop_index("ix_tenants_halted", "tenants")
    # The older release refuses every request of a key with a scope that it does not know.
    op.execute(
        "UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()), scopes = ARRAY['read']"
        " WHERE scopes <@ ARRAY['operator']"
    )
    op.execute("UPDATE api_keys SET scopes = array_remove(scopes, 'operator')")
    _allow_scopes("'admin', 'read', 'submit'")
    for table in _TABLES:
        for name in (*_COLUMNS, "halted_since"):
            op.drop_column(table, name, if_exists=True)


def _allow_scopes(scopes: str) -> None:
    op.execute(f"ALTER TABLE api_keys DROP CONSTRAINT IF EXISTS {_SCOPES}")
    op.create_check_constraint(
        op.f(_SCOPES), "api_keys", sa.text(f"cardinality(scopes) >= 1 AND scopes <@ ARRAY[{scopes}]")
    )
