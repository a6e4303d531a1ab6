"""Webhook endpoints, secrets, and a row per event and destination that records what must be delivered.

Only adds: processes of the release before keep running, and service workers of this one take over what those
leave pending in `webhook_events`.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)
_NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _create_endpoints()
    _create_dispatches()
    op.create_table(
        "webhook_breakers",
        sa.Column("destination_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("num_failures", sa.Integer(), nullable=False),
        sa.Column("failing_since", _MOMENT, nullable=False),
        sa.Column("paused_until", _MOMENT, nullable=True),
        sa.CheckConstraint("num_failures >= 1", name=op.f("ck_webhook_breakers_num_failures")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_breakers_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("destination_id", name=op.f("pk_webhook_breakers")),
    )
    _extend_events()
    op.add_column("webhook_deliveries", sa.Column("tenant_id", sa.Uuid(), nullable=True))
    op.add_column("webhook_deliveries", sa.Column("endpoint_id", sa.Uuid(), nullable=True))
    op.execute(
        "UPDATE webhook_deliveries SET tenant_id = e.tenant_id FROM webhook_events e WHERE e.id = event_id"
    )
    op.create_foreign_key(
        op.f("fk_webhook_deliveries_tenant_id"), "webhook_deliveries", "tenants", ["tenant_id"], ["id"]
    )
    op.create_index("ix_webhook_deliveries_tenant", "webhook_deliveries", ["tenant_id", "id"])
    op.add_column("jobs", sa.Column("webhook_secret", sa.LargeBinary(), nullable=True))
    op.add_column(
        "jobs",
        sa.Column("webhook_includes_output", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.add_column("batches", sa.Column("webhook_url", sa.Text(), nullable=True))
    op.add_column("batches", sa.Column("webhook_secret", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("batches", "webhook_secret")
    op.drop_column("batches", "webhook_url")
    op.drop_column("jobs", "webhook_includes_output")
    op.drop_column("jobs", "webhook_secret")
    op.drop_index("ix_webhook_deliveries_tenant", "webhook_deliveries")
    op.drop_constraint(op.f("fk_webhook_deliveries_tenant_id"), "webhook_deliveries")
    op.drop_column("webhook_deliveries", "endpoint_id")
    op.drop_column("webhook_deliveries", "tenant_id")
    op.drop_index("ix_webhook_events_told", "webhook_events")
    op.execute("DELETE FROM webhook_events WHERE endpoint_id IS NOT NULL")
    op.drop_constraint(op.f("ck_webhook_events_one_subject"), "webhook_events")
    op.create_check_constraint(
        op.f("ck_webhook_events_one_subject"), "webhook_events", "num_nonnulls(job_id, batch_id) = 1"
    )
    op.alter_column("webhook_events", "state", existing_type=sa.Text(), server_default=None)
    op.drop_column("webhook_events", "output")
    op.drop_column("webhook_events", "endpoint_id")
    op.drop_table("webhook_breakers")
    op.drop_table("webhook_dispatches")
    op.drop_table("webhook_secrets")
    op.drop_table("webhook_endpoints")


def _secrets() -> list[sa.Column[object]]:
    return [
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("old_secret", sa.LargeBinary(), nullable=True),
        sa.Column("old_secret_expires_at", _MOMENT, nullable=True),
    ]


def _create_endpoints() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("events", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("includes_output", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        *_secrets(),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("disabled_at", _MOMENT, nullable=True),
        sa.Column("created_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.CheckConstraint("cardinality(events) >= 1", name=op.f("ck_webhook_endpoints_events")),
        sa.CheckConstraint(
            "(old_secret IS NULL) = (old_secret_expires_at IS NULL)",
            name=op.f("ck_webhook_endpoints_old_secret_expires"),
        ),
        sa.CheckConstraint(
            "(disabled_reason IS NULL) = (disabled_at IS NULL)", name=op.f("ck_webhook_endpoints_disabled")
        ),
        sa.CheckConstraint(
            "disabled_reason IN ('failing', 'gone', 'owner')",
            name=op.f("ck_webhook_endpoints_disabled_reason"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_endpoints_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index("ix_webhook_endpoints_tenant", "webhook_endpoints", ["tenant_id", "id"])
    op.create_table(
        "webhook_secrets",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        *_secrets(),
        sa.Column("created_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.CheckConstraint(
            "(old_secret IS NULL) = (old_secret_expires_at IS NULL)",
            name=op.f("ck_webhook_secrets_old_secret_expires"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_secrets_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_webhook_secrets")),
    )


def _create_dispatches() -> None:
    op.create_table(
        "webhook_dispatches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("destination_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint_id", sa.Uuid(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("secret", sa.LargeBinary(), nullable=True),
        sa.Column("includes_output", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("num_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("step", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("queued_at", _MOMENT, server_default=_NOW, nullable=False),
        sa.Column("next_attempt_at", _MOMENT, nullable=True),
        sa.CheckConstraint(
            "state IN ('delivered', 'failed', 'pending', 'sending')",
            name=op.f("ck_webhook_dispatches_state"),
        ),
        sa.CheckConstraint(
            "(endpoint_id IS NULL) = (url IS NOT NULL)", name=op.f("ck_webhook_dispatches_one_destination")
        ),
        sa.CheckConstraint(
            "(state IN ('pending', 'sending')) = (next_attempt_at IS NOT NULL)",
            name=op.f("ck_webhook_dispatches_next_iff_open"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_dispatches_tenant_id")),
        sa.ForeignKeyConstraint(
            ["event_id"],
            ["webhook_events.id"],
            name=op.f("fk_webhook_dispatches_event_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name=op.f("fk_webhook_dispatches_endpoint_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_dispatches")),
        sa.UniqueConstraint(
            "event_id", "destination_id", name=op.f("uq_webhook_dispatches_event_id_destination_id")
        ),
    )
    op.create_index(
        "ix_webhook_dispatches_pending",
        "webhook_dispatches",
        ["destination_id", "next_attempt_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_webhook_dispatches_sending",
        "webhook_dispatches",
        ["destination_id"],
        postgresql_where=sa.text("state = 'sending'"),
    )
    op.create_index("ix_webhook_dispatches_endpoint_id", "webhook_dispatches", ["endpoint_id"])


def _extend_events() -> None:
    op.add_column("webhook_events", sa.Column("endpoint_id", sa.Uuid(), nullable=True))
    op.add_column("webhook_events", sa.Column("output", sa.Text(), nullable=True))
    op.alter_column("webhook_events", "state", existing_type=sa.Text(), server_default="none")
    op.drop_constraint(op.f("ck_webhook_events_one_subject"), "webhook_events")
    op.create_check_constraint(
        op.f("ck_webhook_events_one_subject"),
        "webhook_events",
        "num_nonnulls(job_id, batch_id, endpoint_id) = 1",
    )
    op.create_index(
        "ix_webhook_events_told",
        "webhook_events",
        ["tenant_id", "created_at"],
        postgresql_where=sa.text("payload IS NOT NULL"),
    )
