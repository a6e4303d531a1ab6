"""Tensors of jobs by name: those for the engine are stored with the job, those from it are files of its run.

A run's files are hidden uploads until the job completes in the transaction that shows them, under the run's
lease. Those of any other run go with that, and those of a run that nobody completes as abandoned uploads do.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from jobs import ids
from jobs.database import database_now, statements
from jobs.database.statements import insert_set
from jobs.engines.tensors import NO_TENSORS, TensorFile, TensorRequest
from jobs.errors import InvalidRequestError
from jobs.models import EngineOutput, File, Job, JobTensors
from jobs.prompts import store
from jobs.prompts.store import NewText
from jobs.states.file import FileState

PURPOSE: Final = "engine_output"
INPUT_PURPOSE: Final = "engine_input"


@dataclass(frozen=True, slots=True)
class NewOutput:
    """A tensor that a run got, without its elements.

    Attributes:
        name: of the tensor.
        datatype: by Triton's name.
        shape: its dimensions.
        num_bytes: of its file.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    num_bytes: int


def insert(
    session: Session,
    given: Mapping[UUID, NewText],
    *,
    tenant_id: UUID,
    text_ids: Mapping[bytes, UUID],
) -> None:
    """Insert the tensors of jobs, which this transaction has inserted, by their jobs."""
    if not given:
        return
    values: dict[str, list[object]] = {
        "job_id": [*given],
        "tenant_id": [tenant_id] * len(given),
        "text_id": [text_ids[each.sha256] for each in given.values()],
    }
    statements.fetch(session, *insert_set(JobTensors, values))


def load(session: Session, job_id: UUID) -> TensorRequest:
    """Read what the job passes to its engine and wants of it; most want nothing."""
    text_id = session.scalar(select(JobTensors.text_id).where(JobTensors.job_id == job_id))
    return NO_TENSORS if text_id is None else TensorRequest.read(store.load(session, text_id).canonical)


def find_faults(
    session: Session, named: Sequence[TensorFile], *, tenant_id: UUID
) -> dict[TensorFile, InvalidRequestError]:
    """Find those of these files that are not the tenant's, not complete, or of another size, and say so."""
    visible = select(File.id, File.num_bytes).where(
        File.id.in_({each.file_id for each in named}),
        File.tenant_id == tenant_id,
        File.purpose == INPUT_PURPOSE,
        File.state == FileState.COMPLETE,
    )
    sizes = dict(session.execute(visible).tuples().all())
    faults = {each: _fault(each, sizes.get(each.file_id)) for each in named}
    return {each: fault for each, fault in faults.items() if fault is not None}


def text_ids_of(session: Session, job_ids: Collection[UUID]) -> set[UUID]:
    """List the texts that hold the tensors of these jobs."""
    return set(session.scalars(select(JobTensors.text_id).where(JobTensors.job_id.in_(job_ids))))


def begin_files(
    session: Session, job_id: UUID, lease_id: UUID, found: Sequence[NewOutput], *, missing: Sequence[str]
) -> dict[str, UUID] | None:
    """Make a hidden file for each tensor that a run got, and note those that it did not get.

    Returns:
        The files by the tensors' names; None if the lease is lost.
    """
    held = select(Job.tenant_id).where(Job.id == job_id, Job.lease_id == lease_id, Job.state == "running")
    tenant_id = session.scalar(held.with_for_update(key_share=True, read=True))
    if tenant_id is None:
        return None
    now = database_now(session)
    run = {"job_id": job_id, "lease_id": lease_id, "tenant_id": tenant_id}
    files = {
        each.name: File(
            tenant_id=tenant_id,
            purpose=PURPOSE,
            filename=f"{ids.job_id(job_id)}_{_as_file_name(each.name)}.npy",
            state=FileState.UPLOADING,
            num_bytes=each.num_bytes,
            created_at=now,
        )
        for each in found
    }
    session.add_all(files.values())
    session.flush()
    session.add_all(
        EngineOutput(
            **run,
            name=each.name,
            file_id=files[each.name].id,
            datatype=each.datatype,
            shape=list(each.shape),
        )
        for each in found
    )
    session.add_all(EngineOutput(**run, name=name) for name in missing)
    session.flush()
    return {name: file.id for name, file in files.items()}


def publish(session: Session, job_id: UUID, lease_id: UUID) -> None:
    """Show the files of the run that has just completed its job, and remove those of its other runs."""
    mine = select(EngineOutput.file_id).where(
        EngineOutput.job_id == job_id, EngineOutput.lease_id == lease_id, EngineOutput.file_id.is_not(None)
    )
    session.execute(
        update(File)
        .where(File.id.in_(mine), File.state == FileState.UPLOADING)
        .values(state=FileState.COMPLETE)
        .execution_options(synchronize_session=False)
    )
    others = [EngineOutput.job_id == job_id, EngineOutput.lease_id != lease_id]
    _remove_files(session, session.scalars(select(EngineOutput.file_id).where(*others)).all())
    session.execute(delete(EngineOutput).where(*others))


def discard(session: Session, job_id: UUID, lease_id: UUID) -> None:
    """Remove what a run got that did not complete its job."""
    mine = [EngineOutput.job_id == job_id, EngineOutput.lease_id == lease_id]
    files = select(EngineOutput.file_id).join(File, File.id == EngineOutput.file_id)
    hidden = files.where(*mine, File.state == FileState.UPLOADING)
    _remove_files(session, session.scalars(hidden).all())


def remove_files_of(session: Session, job_ids: Collection[UUID]) -> None:
    """Remove the files of jobs that are about to be deleted."""
    files = select(EngineOutput.file_id).where(EngineOutput.job_id.in_(job_ids))
    _remove_files(session, session.scalars(files).all())


def read_outputs(session: Session, job_id: UUID) -> list[tuple[EngineOutput, File | None]]:
    """Read what a completed job got of what it asked for, by name.

    Returns:
        Each with its file; without one, the engine sent none or its owner has deleted it.
    """
    shown = (File.id == EngineOutput.file_id) & (File.state == FileState.COMPLETE)
    query = select(EngineOutput, File).outerjoin(File, shown).where(EngineOutput.job_id == job_id)
    return [(output, file) for output, file in session.execute(query.order_by(EngineOutput.name))]


def _remove_files(session: Session, file_ids: Sequence[UUID | None]) -> None:
    """Mark files as deleted; a round of the service workers removes their bytes."""
    if file_ids:
        session.execute(
            update(File)
            .where(File.id.in_(file_ids), File.state != FileState.DELETED)
            .values(state=FileState.DELETED, deleted_at=func.clock_timestamp())
            .execution_options(synchronize_session=False)
        )


def _fault(file: TensorFile, num_bytes: int | None) -> InvalidRequestError | None:
    if num_bytes is None:
        message = f"{file.param}: you have no file of this id with the purpose {INPUT_PURPOSE}."
    elif num_bytes != file.num_bytes:
        message = f"{file.param}: the tensor has {file.num_bytes} bytes, and the file {num_bytes}."
    else:
        return None
    return InvalidRequestError(message, param=file.param)


def _as_file_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name)
