"""Extractions: the schema and rules of a row of `summaries` that extracts fields, and the sources of findings.

Expand only: columns that are nullable, and an index built beside writers in place of one that it includes.
"""

from alembic import op

from migrations import online

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None

_PURPOSES = ("purpose IN ('answers', 'extraction', 'summary')", "purpose IN ('answers', 'summary')")
_HAVE_SCHEMA = "num_nonnulls(schema, joins) = CASE purpose WHEN 'extraction' THEN 2 ELSE 0 END"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE summaries ADD COLUMN IF NOT EXISTS schema json, ADD COLUMN IF NOT EXISTS joins jsonb,"
        " ADD COLUMN IF NOT EXISTS fault text"
    )
    op.execute("ALTER TABLE findings ADD COLUMN IF NOT EXISTS sources jsonb")
    _replace_check("purpose", _PURPOSES[0])
    _replace_check("extractions_have_schema", _HAVE_SCHEMA)
    for name in ("purpose", "extractions_have_schema"):
        online.validate("summaries", f"ck_summaries_{name}")
    where = "purpose <> 'summary' AND state = 'running'"
    online.create_index("ix_summaries_unsettled", "summaries", ["id"], where=where)
    online.drop_index("ix_summaries_answers", "summaries")


def downgrade() -> None:
    # The release before cannot settle them.
    extractions = "(SELECT id FROM summaries WHERE purpose = 'extraction')"
    op.execute(f"DELETE FROM webhook_events WHERE summary_id IN {extractions}")
    op.execute(
        f"DELETE FROM reservations WHERE job_id IN (SELECT id FROM jobs WHERE summary_id IN {extractions})"
    )
    op.execute(f"DELETE FROM jobs WHERE summary_id IN {extractions}")
    op.execute("DELETE FROM summaries WHERE purpose = 'extraction'")
    op.execute("ALTER TABLE summaries DROP CONSTRAINT IF EXISTS ck_summaries_extractions_have_schema")
    _replace_check("purpose", _PURPOSES[1])
    op.drop_column("findings", "sources", if_exists=True)
    for column in ("fault", "joins", "schema"):
        op.drop_column("summaries", column, if_exists=True)
    online.validate("summaries", "ck_summaries_purpose")
    online.create_index(
        "ix_summaries_answers", "summaries", ["id"], where="purpose = 'answers' AND state = 'running'"
    )
    online.drop_index("ix_summaries_unsettled", "summaries")


def _replace_check(name: str, condition: str) -> None:
    op.execute(f"ALTER TABLE summaries DROP CONSTRAINT IF EXISTS ck_summaries_{name}")
    op.execute(f"ALTER TABLE summaries ADD CONSTRAINT ck_summaries_{name} CHECK ({condition}) NOT VALID")
