"""The tables of engines: what each can hold, what is booked on it, and whom it served."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, func, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, one_of


class Engine(Base):
    """One Triton engine, keyed by its configured name.

    Attributes:
        spare_blocks: free blocks beyond our own bookings by its gauge; None: no gauge, or all ours.
        seen_at: when a worker last found it ready.
        paused_reason: why no claims are made; None: they are.
    """

    __tablename__ = "engines"
    __table_args__ = (CheckConstraint("max_batch_size >= 1 AND max_blocks >= 1", name="capacity"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str]
    max_batch_size: Mapped[int]
    max_blocks: Mapped[int]
    tokens_per_block: Mapped[int]
    max_input_len: Mapped[int]
    max_seq_len: Mapped[int]
    spare_blocks: Mapped[int | None]
    seen_at: Mapped[datetime]
    paused_reason: Mapped[str | None]


class Reservation(Base):
    """Slots and blocks booked on an engine; the row goes when the engine confirmed the request's end.

    Attributes:
        lease_id: the claim that booked it.
        state: `held` by a live stream, or `draining`: ours no more, but perhaps still in the engine.
        output_tokens: generated tokens that the booking covers beside the prompt, earlier ones included.
        output_before: of them, those that earlier runs had generated.
        overtakes: the better ranked job that it started ahead of; its growth must not postpone that one.
        is_waiting: the job reached the end of its booking and waits for blocks to go on.
        alone: nothing may start beside it.
    """

    __tablename__ = "reservations"
    __table_args__ = (
        CheckConstraint(one_of("state", ["draining", "held"]), name="state"),
        CheckConstraint("(state = 'draining') = (draining_since IS NOT NULL)", name="draining_since"),
        CheckConstraint("blocks >= 1", name="blocks"),
        Index("ix_reservations_engine_name", "engine_name"),
    )

    lease_id: Mapped[UUID] = mapped_column(primary_key=True)
    engine_name: Mapped[str] = mapped_column(ForeignKey("engines.name"))
    # No foreign key: a deleted job's request may still drain.
    job_id: Mapped[UUID]
    blocks: Mapped[int] = mapped_column(Integer)
    output_tokens: Mapped[int]
    output_before: Mapped[int] = mapped_column(server_default="0")
    overtakes: Mapped[UUID | None]
    is_waiting: Mapped[bool] = mapped_column(server_default=text("false"))
    alone: Mapped[bool] = mapped_column(server_default=text("false"))
    state: Mapped[str] = mapped_column(server_default="held")
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    draining_since: Mapped[datetime | None]


class TenantAccount(Base):
    """What a tenant was served of one model; see `fair_share`.

    Attributes:
        served: tokens, divided by the weight that the tenant had when it was served.
        is_active: it had a job, waiting or running, when an engine last looked.
    """

    __tablename__ = "accounts"
    __table_args__ = (
        Index("ix_accounts_active", "model", postgresql_where=text("is_active")),
        {"postgresql_with": {"fillfactor": 50}},  # charged at every claim and end: the row stays on its page
    )

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    served: Mapped[float] = mapped_column(server_default="0")
    is_active: Mapped[bool] = mapped_column(server_default=text("false"))
