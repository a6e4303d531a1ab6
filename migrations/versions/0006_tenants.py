"""Keys and limits of tenants, usage by day, quotas of unfinished jobs; idempotency keys for all that is made.

`migrations/isolation.py`, which runs after every upgrade, defines which rows each role may see.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("handle", sa.Text(), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("octet_length(secret_sha256) = 32", name=op.f("ck_api_keys_sha256")),
        sa.CheckConstraint(
            "cardinality(scopes) >= 1 AND scopes <@ ARRAY['admin', 'read', 'submit']",
            name=op.f("ck_api_keys_scopes"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("handle", name=op.f("uq_api_keys_handle")),
    )
    op.create_index("ix_api_keys_tenant_id", "api_keys", ["tenant_id"])
    op.create_table(
        "tenant_limits",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("max_enqueued_tokens", sa.BigInteger(), nullable=True),
        sa.Column("max_jobs", sa.Integer(), nullable=True),
        sa.Column("max_requests", sa.Integer(), nullable=True),
        sa.CheckConstraint(
            "max_enqueued_tokens >= 0 AND max_jobs >= 0 AND max_requests >= 1",
            name=op.f("ck_tenant_limits_bounds"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_tenant_limits_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_tenant_limits")),
    )
    _create_usage()
    _add_quotas()
    _open_idempotency_keys()


def downgrade() -> None:
    # The older table has no place for keys of anything but jobs.
    op.execute("DELETE FROM idempotency_keys WHERE subject_type <> 'job' OR subject_id IS NULL")
    op.execute("DELETE FROM idempotency_keys WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.id = subject_id)")
    op.drop_column("idempotency_keys", "answer")
    op.drop_column("idempotency_keys", "subject_type")
    op.alter_column("idempotency_keys", "subject_id", new_column_name="job_id", nullable=False)
    op.create_foreign_key(
        op.f("fk_idempotency_keys_job_id"), "idempotency_keys", "jobs", ["job_id"], ["id"], ondelete="CASCADE"
    )
    op.drop_index("ix_jobs_unfinished", "jobs")
    op.drop_column("jobs", "reserved_tokens")
    op.drop_table("usage_days")
    op.drop_table("usage_entries")
    op.drop_table("tenant_limits")
    op.drop_table("api_keys")


def _create_usage() -> None:
    for name in ("usage_entries", "usage_days"):
        is_entry = name == "usage_entries"
        key = ["id"] if is_entry else ["tenant_id", "day", "model", "state"]
        op.create_table(
            name,
            *([sa.Column("id", sa.Uuid(), nullable=False)] if is_entry else []),
            sa.Column("tenant_id", sa.Uuid(), nullable=False),
            sa.Column("day", sa.Date(), nullable=False),
            sa.Column("model", sa.Text(), nullable=False),
            sa.Column("state", sa.Text(), nullable=False),
            sa.Column("num_jobs", sa.Integer() if is_entry else sa.BigInteger(), nullable=False),
            sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
            sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
            sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f(f"fk_{name}_tenant_id")),
            sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{name}")),
        )
    op.create_index("ix_usage_entries_tenant_id", "usage_entries", ["tenant_id", "day"])


def _add_quotas() -> None:
    op.add_column("jobs", sa.Column("reserved_tokens", sa.Integer(), server_default="0", nullable=False))
    op.execute(
        "UPDATE jobs SET reserved_tokens = coalesce(prompt_tokens, 0) + max_tokens WHERE finalized_at IS NULL"
    )
    op.create_index(
        "ix_jobs_unfinished",
        "jobs",
        ["tenant_id"],
        postgresql_include=["reserved_tokens"],
        postgresql_where=sa.text("finalized_at IS NULL"),
    )


def _open_idempotency_keys() -> None:
    op.drop_constraint(op.f("fk_idempotency_keys_job_id"), "idempotency_keys", type_="foreignkey")
    op.alter_column("idempotency_keys", "job_id", new_column_name="subject_id", nullable=True)
    op.add_column(
        "idempotency_keys",
        sa.Column("subject_type", sa.Text(), server_default=sa.text("'job'"), nullable=False),
    )
    op.add_column(
        "idempotency_keys",
        sa.Column("answer", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
    )
