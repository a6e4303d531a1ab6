"""The tables of tensors by name: what jobs pass to their engines, and the files of what they get."""

from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, partial_index


class JobTensors(Base):
    """The tensors that a job passes to its engine besides its prompt. Few jobs have any.

    `engines.tensor_rows` writes it with the job.

    Attributes:
        job_id: the job. Deleted with it.
        tenant_id: the owner.
        text_id: the tensors as JSON (`engines.tensors`); stored as texts are, so that equal ones of a tenant
            are stored once.
    """

    __tablename__ = "job_tensors"
    __table_args__ = (Index("ix_job_tensors_text_id", "text_id"),)

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    text_id: Mapped[UUID] = mapped_column(ForeignKey("texts.id"))


class EngineOutput(Base):
    """A tensor that a run of a job got from its engine, or did not get though the job asks for it.

    The run's worker writes it, with a file that is hidden until the job completes. `engines.tensor_rows`.

    Attributes:
        job_id: the job. Deleted with it.
        lease_id: the run. Once the job is complete, there are only those of the run that completed it.
        name: of the tensor.
        tenant_id: the owner.
        file_id: the file of its elements. Deleted with it. Null: the engine sent none.
        datatype: of its elements, by Triton's name. Null with `file_id`.
        shape: its dimensions without that of batches. Null with `file_id`.
    """

    __tablename__ = "engine_outputs"
    __table_args__ = (partial_index("ix_engine_outputs_file_id", "file_id", where="file_id IS NOT NULL"),)

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    lease_id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    file_id: Mapped[UUID | None] = mapped_column(ForeignKey("files.id", ondelete="CASCADE"))
    datatype: Mapped[str | None]
    shape: Mapped[list[int] | None] = mapped_column(ARRAY(BigInteger))
