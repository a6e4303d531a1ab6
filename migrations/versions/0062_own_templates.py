"""Callers' own templates of summaries, answers and extractions, stored as texts are.

Expand only: a nullable column, an index built beside writers. The check makes rows with a template such as the
release before refuses: its workers fail them, and none answers in the product's words what was asked in others.
"""

from alembic import op

from migrations import online

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None

_IS_GUARDED = "template_id IS NULL OR jsonb_exists(chat_template_kwargs, 'messages')"


def upgrade() -> None:
    # The rows that are there have none, so the checks pass all of them.
    op.execute("ALTER TABLE summaries ADD COLUMN IF NOT EXISTS template_id uuid")
    for name in ("fk_summaries_template_id", "ck_summaries_template_is_guarded"):
        op.execute(f"ALTER TABLE summaries DROP CONSTRAINT IF EXISTS {name}")
    op.execute(
        "ALTER TABLE summaries ADD CONSTRAINT fk_summaries_template_id"
        " FOREIGN KEY (template_id) REFERENCES texts (id) NOT VALID"
    )
    op.execute(
        "ALTER TABLE summaries ADD CONSTRAINT ck_summaries_template_is_guarded"
        f" CHECK ({_IS_GUARDED}) NOT VALID"
    )
    online.commit()
    online.create_index(
        "ix_summaries_template_id", "summaries", ["template_id"], where="template_id IS NOT NULL"
    )
    for name in ("fk_summaries_template_id", "ck_summaries_template_is_guarded"):
        online.validate("summaries", name)


def downgrade() -> None:
    online.drop_index("ix_summaries_template_id", "summaries")
    for name in ("fk_summaries_template_id", "ck_summaries_template_is_guarded"):
        op.execute(f"ALTER TABLE summaries DROP CONSTRAINT IF EXISTS {name}")
    # Those that have not ended keep what makes the release before refuse them.
    op.execute(
        "UPDATE summaries SET chat_template_kwargs = chat_template_kwargs - 'messages'"
        " WHERE template_id IS NOT NULL AND finalized_at IS NOT NULL"
    )
    op.execute("DELETE FROM texts WHERE id IN (SELECT template_id FROM summaries)")
    op.drop_column("summaries", "template_id", if_exists=True)
