"""Files and batches; jobs know their batch, and events can be about a batch.

Expand only: code of the revision before keeps running next to this one, as jobs and events without a batch
do not change.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _create_files()
    _create_batches()
    op.add_column("jobs", sa.Column("batch_id", sa.Uuid(), nullable=True))
    op.add_column("jobs", sa.Column("batch_line", sa.Integer(), nullable=True))
    op.add_column(
        "jobs", sa.Column("is_reported", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    # No row matches yet: this reads the table once and writes nothing.
    op.create_index(
        "ix_jobs_batch",
        "jobs",
        ["batch_id", "finalized_at"],
        postgresql_where=sa.text("batch_id IS NOT NULL AND NOT is_reported"),
    )
    op.add_column("webhook_events", sa.Column("batch_id", sa.Uuid(), nullable=True))
    op.alter_column("webhook_events", "job_id", existing_type=sa.Uuid(), nullable=True)
    op.create_check_constraint(
        op.f("ck_webhook_events_one_subject"), "webhook_events", "num_nonnulls(job_id, batch_id) = 1"
    )
    op.create_unique_constraint(
        op.f("uq_webhook_events_batch_id_type"), "webhook_events", ["batch_id", "type"]
    )


def downgrade() -> None:
    op.execute("DELETE FROM webhook_events WHERE batch_id IS NOT NULL")
    op.drop_constraint(op.f("uq_webhook_events_batch_id_type"), "webhook_events")
    op.drop_constraint(op.f("ck_webhook_events_one_subject"), "webhook_events")
    op.alter_column("webhook_events", "job_id", existing_type=sa.Uuid(), nullable=False)
    op.drop_column("webhook_events", "batch_id")
    op.drop_index("ix_jobs_batch", "jobs")
    op.drop_column("jobs", "is_reported")
    op.drop_column("jobs", "batch_line")
    op.drop_column("jobs", "batch_id")
    op.drop_table("batches")
    op.drop_table("file_parts")
    op.drop_table("files")


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=True),
        sa.Column("deleted_at", _MOMENT, nullable=True),
        sa.CheckConstraint(
            "state IN ('complete', 'deleted', 'growing', 'uploading')", name=op.f("ck_files_state")
        ),
        sa.CheckConstraint(
            "(state = 'deleted') = (deleted_at IS NOT NULL)", name=op.f("ck_files_deleted_at")
        ),
        sa.CheckConstraint("num_bytes >= 0", name=op.f("ck_files_num_bytes")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_files_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index("ix_files_tenant", "files", ["tenant_id", "id"])
    for name, column, state in (
        ("ix_files_expiring", "expires_at", "complete"),
        ("ix_files_deleted", "deleted_at", "deleted"),
        ("ix_files_uploading", "created_at", "uploading"),
    ):
        op.create_index(name, "files", [column], postgresql_where=sa.text(f"state = '{state}'"))
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("num_bytes", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.CheckConstraint("num_nonnulls(content, key) = 1", name=op.f("ck_file_parts_one_place")),
        sa.CheckConstraint("start >= 0 AND num_bytes > 0", name=op.f("ck_file_parts_extent")),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_file_parts_file_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_file_parts_tenant_id")),
        sa.PrimaryKeyConstraint("file_id", "start", name=op.f("pk_file_parts")),
    )
    # The bytes are compressed already.
    op.execute("ALTER TABLE file_parts ALTER COLUMN content SET STORAGE EXTERNAL")


def _create_batches() -> None:
    counts = ("num_lines", "num_completed", "num_failed", "num_stopped")
    moments = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    ended_at = " AND ".join(
        f"(state = '{each}') = ({each}_at IS NOT NULL)"
        for each in ("failed", "completed", "expired", "cancelled")
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Uuid(), nullable=False),
        sa.Column("output_file_id", sa.Uuid(), nullable=True),
        sa.Column("error_file_id", sa.Uuid(), nullable=True),
        sa.Column("output_expires_seconds", sa.Integer(), nullable=True),
        sa.Column("retry_of", sa.Uuid(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("metadata", postgresql.JSONB(), nullable=True),
        sa.Column("errors", postgresql.JSONB(), nullable=True),
        *(sa.Column(name, sa.Integer(), server_default="0", nullable=False) for name in counts),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_offset", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_line", sa.Integer(), server_default="1", nullable=False),
        sa.Column("is_expanded", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("request_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        *(sa.Column(f"{name}_at", _MOMENT, nullable=True) for name in moments),
        sa.CheckConstraint(
            "state IN ('cancelled', 'cancelling', 'completed', 'expired', 'failed', 'finalizing',"
            " 'in_progress', 'validating')",
            name=op.f("ck_batches_state"),
        ),
        sa.CheckConstraint(
            "endpoint IN ('/v1/chat/completions', '/v1/completions')", name=op.f("ck_batches_endpoint")
        ),
        sa.CheckConstraint(ended_at, name=op.f("ck_batches_ended_at")),
        sa.CheckConstraint(
            "(state = 'failed') = (errors IS NOT NULL)", name=op.f("ck_batches_errors_iff_failed")
        ),
        sa.CheckConstraint(
            "num_completed >= 0 AND num_failed >= 0 AND num_stopped >= 0"
            " AND num_completed + num_failed + num_stopped <= num_lines",
            name=op.f("ck_batches_counts"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('finalizing', 'completed', 'expired', 'cancelled')"
            " OR num_completed + num_failed + num_stopped = num_lines",
            name=op.f("ck_batches_ends_whole"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_batches_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index("ix_batches_tenant", "batches", ["tenant_id", "id"])
    op.create_index(
        "ix_batches_active",
        "batches",
        ["id"],
        postgresql_where=sa.text("state IN ('cancelling', 'finalizing', 'in_progress', 'validating')"),
    )
