"""The first schema: tenants, texts, jobs, results, engines, reservations, webhook events, idempotency keys.

Compressed bodies are stored EXTERNAL, so that the server does not try to compress them again.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "engines",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("max_batch_size", sa.Integer(), nullable=False),
        sa.Column("max_blocks", sa.Integer(), nullable=False),
        sa.Column("tokens_per_block", sa.Integer(), nullable=False),
        sa.Column("max_input_len", sa.Integer(), nullable=False),
        sa.Column("max_seq_len", sa.Integer(), nullable=False),
        sa.Column("spare_blocks", sa.Integer(), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paused_reason", sa.Text(), nullable=True),
        sa.CheckConstraint("max_batch_size >= 1 AND max_blocks >= 1", name=op.f("ck_engines_capacity")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_engines")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "reservations",
        sa.Column("lease_id", sa.Uuid(), nullable=False),
        sa.Column("engine_name", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("blocks", sa.Integer(), nullable=False),
        sa.Column("alone", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state", sa.Text(), server_default="held", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("draining_since", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'draining') = (draining_since IS NOT NULL)", name=op.f("ck_reservations_draining_since")
        ),
        sa.CheckConstraint("state IN ('draining', 'held')", name=op.f("ck_reservations_state")),
        sa.CheckConstraint("blocks >= 1", name=op.f("ck_reservations_blocks")),
        sa.ForeignKeyConstraint(["engine_name"], ["engines.name"], name=op.f("fk_reservations_engine_name")),
        sa.PrimaryKeyConstraint("lease_id", name=op.f("pk_reservations")),
    )
    op.create_index("ix_reservations_engine_name", "reservations", ["engine_name"], unique=False)
    op.create_table(
        "texts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=True),
        sa.Column("num_tokens", sa.Integer(), nullable=True),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_texts_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_texts")),
        sa.UniqueConstraint("tenant_id", "sha256", name=op.f("uq_texts_tenant_id_sha256")),
    )
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("payload", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("num_deliveries", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("next_delivery_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("(state = 'none') = (url IS NULL)", name=op.f("ck_webhook_events_url_iff_asked")),
        sa.CheckConstraint(
            "(state = 'pending') = (next_delivery_at IS NOT NULL)",
            name=op.f("ck_webhook_events_next_iff_pending"),
        ),
        sa.CheckConstraint(
            "state IN ('delivered', 'failed', 'none', 'pending')", name=op.f("ck_webhook_events_state")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_events_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_events")),
        sa.UniqueConstraint("job_id", "type", name=op.f("uq_webhook_events_job_id_type")),
    )
    op.create_index("ix_webhook_events_created_at", "webhook_events", ["created_at"], unique=False)
    op.create_index(
        "ix_webhook_events_pending",
        "webhook_events",
        ["next_delivery_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("text_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("rank", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "sampling",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("webhook_url", sa.Text(), nullable=True),
        sa.Column("attempt", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("num_rescues", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("lease_id", sa.Uuid(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("engine_name", sa.Text(), nullable=True),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("passed_over_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("error", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("first_token_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finalized_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(lease_id IS NULL) = (lease_expires_at IS NULL) AND (state <> 'running' OR lease_id IS NOT NULL) AND (lease_id IS NULL OR state IN ('preparing', 'running'))",
            name=op.f("ck_jobs_lease_iff_held"),
        ),
        sa.CheckConstraint(
            "(state = 'completed') = (finish_reason IS NOT NULL)", name=op.f("ck_jobs_finish_iff_completed")
        ),
        sa.CheckConstraint("(state = 'failed') = (error IS NOT NULL)", name=op.f("ck_jobs_error_iff_failed")),
        sa.CheckConstraint(
            "(state IN ('cancelled', 'completed', 'expired', 'failed')) = (finalized_at IS NOT NULL)",
            name=op.f("ck_jobs_terminal_iff_finalized"),
        ),
        sa.CheckConstraint("finish_reason IN ('length', 'stop')", name=op.f("ck_jobs_finish_reason")),
        sa.CheckConstraint(
            "state IN ('blocked', 'cancelled', 'completed', 'expired', 'failed', 'preparing', 'queued', 'running')",
            name=op.f("ck_jobs_state"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('queued', 'running', 'completed') OR prompt_tokens IS NOT NULL",
            name=op.f("ck_jobs_counted"),
        ),
        sa.CheckConstraint(
            "stop_reason IN ('cancel', 'expire', 'preempt', 'shutdown')", name=op.f("ck_jobs_stop_reason")
        ),
        sa.CheckConstraint(
            "attempt >= 0 AND num_rescues >= 0 AND rank BETWEEN -1 AND 1", name=op.f("ck_jobs_counters")
        ),
        sa.CheckConstraint(
            "completion_tokens BETWEEN 0 AND max_tokens", name=op.f("ck_jobs_output_within_limit")
        ),
        sa.CheckConstraint("max_tokens >= 1 AND prompt_tokens >= 0", name=op.f("ck_jobs_tokens")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_jobs_tenant_id")),
        sa.ForeignKeyConstraint(["text_id"], ["texts.id"], name=op.f("fk_jobs_text_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        postgresql_with={
            "fillfactor": 70,
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 5000,
            "autovacuum_analyze_scale_factor": 0,
            "autovacuum_analyze_threshold": 5000,
        },
    )
    op.create_index(
        "ix_jobs_custom_id",
        "jobs",
        ["tenant_id", "custom_id", "id"],
        unique=False,
        postgresql_where=sa.text("custom_id IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_expiring",
        "jobs",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text(
            "expires_at IS NOT NULL AND NOT (state IN ('cancelled', 'completed', 'expired', 'failed'))"
        ),
    )
    op.create_index(
        "ix_jobs_finalized",
        "jobs",
        ["finalized_at"],
        unique=False,
        postgresql_where=sa.text("finalized_at IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_preparing", "jobs", ["id"], unique=False, postgresql_where=sa.text("state = 'preparing'")
    )
    op.create_index(
        "ix_jobs_queued",
        "jobs",
        ["model", sa.literal_column("rank DESC"), "id"],
        unique=False,
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "ix_jobs_running", "jobs", ["id"], unique=False, postgresql_where=sa.text("state = 'running'")
    )
    op.create_index("ix_jobs_tenant", "jobs", ["tenant_id", "id"], unique=False)
    op.create_index("ix_jobs_text_id", "jobs", ["text_id"], unique=False)
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("latency_ms", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["event_id"],
            ["webhook_events.id"],
            name=op.f("fk_webhook_deliveries_event_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index("ix_webhook_deliveries_event_id", "webhook_deliveries", ["event_id"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_idempotency_keys_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_idempotency_keys_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "results",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("output_ids", sa.LargeBinary(), nullable=False),
        sa.Column("replaced", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_results_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_results")),
    )

    for table, column in (("texts", "body"), ("texts", "token_ids"), ("results", "output_ids")):
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")
    op.execute("INSERT INTO tenants (id, name) VALUES ('00000000-0000-7000-8000-000000000001', 'default')")


def downgrade() -> None:
    op.drop_table("results")
    op.drop_index("ix_idempotency_keys_created_at", table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_index("ix_webhook_deliveries_event_id", table_name="webhook_deliveries")
    op.drop_table("webhook_deliveries")
    op.drop_index("ix_jobs_text_id", table_name="jobs")
    op.drop_index("ix_jobs_tenant", table_name="jobs")
    op.drop_index("ix_jobs_running", table_name="jobs", postgresql_where=sa.text("state = 'running'"))
    op.drop_index("ix_jobs_queued", table_name="jobs", postgresql_where=sa.text("state = 'queued'"))
    op.drop_index("ix_jobs_preparing", table_name="jobs", postgresql_where=sa.text("state = 'preparing'"))
    op.drop_index(
        "ix_jobs_finalized", table_name="jobs", postgresql_where=sa.text("finalized_at IS NOT NULL")
    )
    op.drop_index(
        "ix_jobs_expiring",
        table_name="jobs",
        postgresql_where=sa.text(
            "expires_at IS NOT NULL AND NOT (state IN ('cancelled', 'completed', 'expired', 'failed'))"
        ),
    )
    op.drop_index("ix_jobs_custom_id", table_name="jobs", postgresql_where=sa.text("custom_id IS NOT NULL"))
    op.drop_table("jobs")
    op.drop_index(
        "ix_webhook_events_pending",
        table_name="webhook_events",
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.drop_index("ix_webhook_events_created_at", table_name="webhook_events")
    op.drop_table("webhook_events")
    op.drop_table("texts")
    op.drop_index("ix_reservations_engine_name", table_name="reservations")
    op.drop_table("reservations")
    op.drop_table("tenants")
    op.drop_table("engines")
