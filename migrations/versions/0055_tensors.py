"""Tensors by name: what engines declare, what jobs pass to and get from them, and the scope that it takes.

Expand only: a nullable column, new tables, a wider CHECK. No existing key has the new scope. Engines whose
worker is of the release before declare nothing, and are passed nothing.
"""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

_SCOPES = "ck_api_keys_scopes"


def upgrade() -> None:
    op.execute("ALTER TABLE engines ADD COLUMN IF NOT EXISTS tensors jsonb")
    online.commit()
    op.create_table(
        "job_tensors",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("text_id", sa.Uuid(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_tensors")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_tensors_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_job_tensors_tenant_id")),
        sa.ForeignKeyConstraint(["text_id"], ["texts.id"], name=op.f("fk_job_tensors_text_id")),
        if_not_exists=True,
    )
    op.create_index("ix_job_tensors_text_id", "job_tensors", ["text_id"], if_not_exists=True)
    op.create_table(
        "engine_outputs",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("lease_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("file_id", sa.Uuid()),
        sa.Column("datatype", sa.Text()),
        sa.Column("shape", sa.ARRAY(sa.BigInteger())),
        sa.PrimaryKeyConstraint("job_id", "lease_id", "name", name=op.f("pk_engine_outputs")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_engine_outputs_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_engine_outputs_tenant_id")),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_engine_outputs_file_id"), ondelete="CASCADE"
        ),
        if_not_exists=True,
    )
    op.create_index(
        "ix_engine_outputs_file_id",
        "engine_outputs",
        ["file_id"],
        postgresql_where=sa.text("file_id IS NOT NULL"),
        if_not_exists=True,
    )
    online.commit()
    _allow_scopes("'admin', 'engine', 'operator', 'read', 'submit'")


def downgrade() -> None:
    online.refuse_while_unfinished("id IN (SELECT job_id FROM job_tensors)", what="tensors of their own")
    # The older release refuses every request of a key with a scope that it does not know.
    op.execute(
        "UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()), scopes = ARRAY['read']"
        " WHERE scopes <@ ARRAY['engine']"
    )
    op.execute("UPDATE api_keys SET scopes = array_remove(scopes, 'engine')")
    _allow_scopes("'admin', 'operator', 'read', 'submit'")
    # Those of unfinished runs would stay; what is complete stays as files of its tenant.
    op.execute("DELETE FROM files WHERE purpose = 'engine_output' AND state = 'uploading'")
    op.drop_table("engine_outputs", if_exists=True)
    op.drop_table("job_tensors", if_exists=True)
    op.drop_column("engines", "tensors", if_exists=True)


def _allow_scopes(scopes: str) -> None:
    op.execute(f"ALTER TABLE api_keys DROP CONSTRAINT IF EXISTS {_SCOPES}")
    op.create_check_constraint(
        op.f(_SCOPES), "api_keys", sa.text(f"cardinality(scopes) >= 1 AND scopes <@ ARRAY[{scopes}]")
    )
