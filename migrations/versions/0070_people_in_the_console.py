"""Sessions of the console of people who signed in by a provider, without an API key.

Expand only: columns that are nullable, and a column that may be null from now on. Processes of the release before
find no such session, and lead its browser to the form.
"""

from alembic import op

from migrations import online

revision = "0070"
down_revision = "0069"
branch_labels = None
depends_on = None

_COLUMNS = {"person_issuer": "text", "person_subject": "text", "person_name": "text", "scopes": "text[]"}
_IS_ONE = (
    "num_nonnulls(api_key_id, person_subject) = 1"
    " AND num_nulls(person_issuer, person_subject, person_name, scopes) IN (0, 4)"
)


def upgrade() -> None:
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in _COLUMNS.items())
    op.execute(f"ALTER TABLE console_sessions {added}, ALTER COLUMN api_key_id DROP NOT NULL")
    op.execute("ALTER TABLE console_sessions DROP CONSTRAINT IF EXISTS ck_console_sessions_key_or_person")
    op.execute(
        f"ALTER TABLE console_sessions ADD CONSTRAINT ck_console_sessions_key_or_person CHECK ({_IS_ONE}) NOT VALID"
    )
    online.validate("console_sessions", "ck_console_sessions_key_or_person")


def downgrade() -> None:
    op.execute("ALTER TABLE console_sessions DROP CONSTRAINT IF EXISTS ck_console_sessions_key_or_person")
    op.execute("DELETE FROM console_sessions WHERE api_key_id IS NULL")
    op.execute("ALTER TABLE console_sessions ALTER COLUMN api_key_id SET NOT NULL")
    for column in _COLUMNS:
        op.drop_column("console_sessions", column, if_exists=True)
