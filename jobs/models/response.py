"""The table of what a job does not know of its response."""

from uuid import UUID

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, partial_index


class StoredResponse(Base):
    """What a response shows besides its job and result. `responses.rows` writes it with the job.

    Attributes:
        job_id: the job that generates its output; the response's id has the same digits. Deleted with it.
        tenant_id: the owner.
        request_id: the parameters that the response repeats, as JSON; stored as texts are, so that equal
            ones of a tenant are stored once.
        input_id: the items of its input, as JSON, stored the same way. Null: the response cannot be
            retrieved, as it is a line of a batch.
    """

    __tablename__ = "responses"
    __table_args__ = (
        Index("ix_responses_request_id", "request_id"),
        partial_index("ix_responses_input_id", "input_id", where="input_id IS NOT NULL"),
    )

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    request_id: Mapped[UUID] = mapped_column(ForeignKey("texts.id"))
    input_id: Mapped[UUID | None] = mapped_column(ForeignKey("texts.id"))
