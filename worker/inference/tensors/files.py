"""Files whose bytes are the elements of a job's tensors, read as its run begins."""

from dataclasses import replace
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import files
from jobs.engines.tensors import TensorFile, TensorInput, TensorRequest
from jobs.errors import LongbatchError, NotFoundError
from jobs.files.storage import PartStore


class TensorFileGoneError(LongbatchError):
    """A file that engine_inputs names was deleted before the job ran."""

    code = "engine_input_gone"


def with_files(session: Session, asked: TensorRequest, store: PartStore, *, tenant_id: UUID) -> TensorRequest:
    """Read the files that a job's tensors name.

    Raises:
        TensorFileGoneError: one was deleted since the job was accepted, or has expired.
        BytesLostError: this process does not reach the store that has them.
    """
    contents = {each.file_id: _read(session, each, store, tenant_id=tenant_id) for each in asked.files}

    def filled(each: TensorInput) -> TensorInput:
        return each if each.file_id is None else replace(each, data=contents[each.file_id])

    return replace(asked, inputs={name: filled(each) for name, each in asked.inputs.items()})


def _read(session: Session, named: TensorFile, store: PartStore, *, tenant_id: UUID) -> bytes:
    try:
        file = files.get(session, named.file_id, tenant_id=tenant_id)
    except NotFoundError as error:
        raise TensorFileGoneError from error
    found = b"".join(files.read_chunks(session, file.id, store))
    if len(found) != named.num_bytes:
        raise TensorFileGoneError
    return found
