"""The tables that keep the sweep of unnamed bytes away from those of a database that is being restored."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base


class Installation(Base):
    """One row: the random name of this database. A database that is created again gets another one.

    Attributes:
        is_only: always true, so that there is no second row.
        id: random. The first worker that needs it writes the row; a dump carries it along.
    """

    __tablename__ = "installation"
    __table_args__ = (CheckConstraint("is_only", name="only"),)

    is_only: Mapped[bool] = mapped_column(primary_key=True, server_default=text("true"))
    id: Mapped[UUID] = mapped_column(server_default=text("gen_random_uuid()"))


class StrayPart(Base):
    """A part in the store that no row named when the sweep last looked; see `files.stray_parts`.

    Attributes:
        key: the store's key for the part.
        seen_in: the table of parts in which the sweep first missed it (`stray_parts.catalogue`).
        seen_at: when that was. The part is removed a week later if it is still unnamed.
    """

    __tablename__ = "stray_parts"
    __table_args__ = (Index("ix_stray_parts_seen_at", "seen_at"),)

    key: Mapped[str] = mapped_column(primary_key=True)
    seen_in: Mapped[str]
    seen_at: Mapped[datetime]
