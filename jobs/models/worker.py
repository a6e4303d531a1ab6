"""The table of worker processes, by which others see whether each does its work."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, CheckConstraint, Text, func, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, one_of


class Worker(Base):
    """A worker process. It writes its row every few seconds, and deletes it when it stops.

    Attributes:
        id: made by the process when it starts.
        role: `inference` or `service`.
        name: host and process id, for people.
        process: identifies the operating system's process (`worker.process_identity`). Null: the system
            does not show enough.
        engine_name: the engine that it is configured to feed. Null: none.
        model: the model that it is to serve. Null: none.
        refusal: why it could not register its engine yet. Null: it has, or it feeds none. What keeps a
            registered engine from starting jobs is in the engine's row.
        late_loops: its loops that hang or keep failing.
        seen_at: when it last wrote this row.
    """

    __tablename__ = "workers"
    __table_args__ = (CheckConstraint(one_of("role", ["inference", "service"]), name="role"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    role: Mapped[str]
    name: Mapped[str]
    process: Mapped[str | None]
    engine_name: Mapped[str | None]
    model: Mapped[str | None]
    refusal: Mapped[str | None]
    late_loops: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    seen_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
