"""The fields of a job that name tensors of the engine's model, and what they come to."""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Final
from uuid import UUID

import numpy as np
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from api.runtime.services import Services
from jobs import ids
from jobs.database.base import JsonObject
from jobs.engines import tensor_rows
from jobs.engines.tensors import (
    BYTES,
    DATATYPES,
    ELEMENT_BYTES,
    NO_TENSORS,
    NOTHING_DECLARED,
    ModelTensors,
    TensorInput,
    TensorRequest,
    described,
    num_bytes,
)
from jobs.errors import ForbiddenError, InvalidRequestError, NotFoundError
from jobs.submission.job_specs import JobSpec
from jobs.tenants.keys import Scope
from jobs.validation import Closed, Text, choice

# TensorRT-LLM's models declare about sixty inputs, most of which are not for callers.
MAX_INPUTS: Final = 32
MAX_OUTPUTS: Final = 16
# Of all inputs of a request; they are stored with the job and loaded with its prompt.
MAX_INLINE_BYTES: Final = 2**20
# Of all files that they name; a worker reads them into memory.
MAX_FILE_BYTES: Final = 64 * 2**20
_MAX_RANK: Final = 8
_LENGTH_BYTES: Final = 4  # before each text of BYTES, little-endian
_DTYPES: Final[Mapping[str, str]] = {
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}

TensorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./:-]{1,128}$")]
_Dimension = Annotated[int, Field(ge=1, lt=2**31)]


class EngineInput(Closed):
    """A tensor that goes to the engine: its elements as JSON, or their bytes."""

    datatype: Annotated[str, choice(DATATYPES)]
    shape: list[_Dimension] = Field(
        max_length=_MAX_RANK, description="As the model declares it, without the dimension of batches."
    )
    # A million wrong elements would be four million errors, of which a caller sees one.
    data: Annotated[list[bool | int | float | Text], Field(fail_fast=True)] | None = Field(
        None, max_length=MAX_INLINE_BYTES, description="Its elements in C order, flat; texts for `BYTES`."
    )
    base64: str | None = Field(None, description="Its elements' bytes instead, little-endian.")
    file_id: Text | None = Field(
        None, description="A file of these bytes, of the purpose `engine_input`; kept until the job has run."
    )


class TensorFields(Closed):
    """What a job may pass to its engine by the names of tensors."""

    engine_inputs: dict[TensorName, EngineInput] | None = Field(
        None,
        max_length=MAX_INPUTS,
        description="Tensors for the model behind Triton, by name, besides those that Longbatch sets itself."
        " Needs the scope `engine`. Such a job is generated in one piece.",
    )
    engine_outputs: list[TensorName] | None = Field(
        None,
        max_length=MAX_OUTPUTS,
        description="Names of tensors of the model's responses that are kept as files, told of by the result."
        " Needs the scope `engine`. Such a job is generated in one piece, and shares no run with equal ones.",
    )

    def tensors_on(self, model: str, declared: ModelTensors | None) -> TensorRequest:
        """Return the tensors, checked against what the engines of the model declare.

        Args:
            model: that is to answer, perhaps by an adapter.
            declared: what models declare; None: the caller may name no tensor.

        Raises:
            ForbiddenError: the caller may not.
            InvalidRequestError: a tensor is not declared like that, is malformed, or all exceed a limit.
            UnsupportedParameterError: the engines of the model declare none.
        """
        inputs, outputs = self.engine_inputs or {}, self.engine_outputs or []
        if not inputs and not outputs:
            return NO_TENSORS
        param = "engine_inputs" if inputs else "engine_outputs"
        if declared is None:
            message = f"{param}: this API key lacks the scope {Scope.ENGINE.value!r}, which this requires."
            raise ForbiddenError(message, param=param)
        if len(set(outputs)) != len(outputs):
            raise InvalidRequestError("engine_outputs: a name is there twice.", param="engine_outputs")
        found = TensorRequest({name: _input(name, each) for name, each in inputs.items()}, tuple(outputs))
        if sum(len(each.data) for each in found.inputs.values()) > MAX_INLINE_BYTES:
            message = f"engine_inputs: must not exceed {MAX_INLINE_BYTES} bytes in all, besides files."
            raise InvalidRequestError(message, param="engine_inputs")
        if sum(each.num_bytes for each in found.files) > MAX_FILE_BYTES:
            message = f"engine_inputs: their files must not exceed {MAX_FILE_BYTES} bytes in all."
            raise InvalidRequestError(message, param="engine_inputs")
        base = model if model in declared else model.rpartition(":")[0]
        found.check(declared.get(base, NOTHING_DECLARED), model)
        return found


class EngineOutputReply(BaseModel):
    """A tensor that the job got from its engine."""

    file_id: str = Field(description="Its file, in NumPy's `.npy` form; deleted with the job.")
    datatype: Annotated[str, choice(ELEMENT_BYTES)] = Field(
        description="The file has `BF16` as the same bits of `uint16`."
    )
    shape: list[int] = Field(description="Without the dimension of batches.")
    bytes: int = Field(description="Of the file.")


def outputs_object(session: Session, job_id: UUID) -> JsonObject | None:
    """Return what a completed job got of the tensors that it asked for; None: it asked for none."""
    found: JsonObject = {
        output.name: None
        if file is None
        else {
            "file_id": ids.file_id(file.id),
            "datatype": output.datatype,
            "shape": output.shape,
            "bytes": file.num_bytes,
        }
        for output, file in tensor_rows.read_outputs(session, job_id)
    }
    return found or None


def _input(name: str, given: EngineInput) -> TensorInput:
    param = f"engine_inputs.{name}"
    if [given.data, given.base64, given.file_id].count(None) != 2:  # one is set
        raise InvalidRequestError(f"{param}: one of data, base64 and file_id must be set.", param=param)
    if given.file_id is not None:
        return TensorInput(given.datatype, tuple(given.shape), file_id=_file_of(given, f"{param}.file_id"))
    if given.data is not None:
        if (wanted := prod(given.shape)) != len(given.data):
            message = f"{param}.data: the shape {given.shape} has {wanted} elements, not {len(given.data)}."
            raise InvalidRequestError(message, param=f"{param}.data")
        found = _packed(given.datatype, given.data, f"{param}.data")
    else:
        found = _decoded(given, f"{param}.base64")
    return TensorInput(given.datatype, tuple(given.shape), found)


def _file_of(given: EngineInput, param: str) -> UUID:
    if given.datatype == BYTES:
        raise InvalidRequestError(f"{param}: {BYTES} are texts; give them as data.", param=param)
    try:
        return ids.parse_file_id(given.file_id or "")
    except NotFoundError:
        raise InvalidRequestError(f"{param}: must be the id of a file.", param=param) from None


async def check_files(
    services: Services, specs: Sequence[JobSpec], *, tenant_id: UUID
) -> dict[int, InvalidRequestError]:
    """Find the jobs that name files which the tenant does not have like that.

    Returns:
        The error of each of them, by its place.
    """
    named = [file for spec in specs for file in spec.tensor_files]
    if not named:
        return {}
    faults = await services.transact(tensor_rows.find_faults, named=named, tenant_id=tenant_id)
    return {
        place: next(faults[file] for file in spec.tensor_files if file in faults)
        for place, spec in enumerate(specs)
        if not faults.keys().isdisjoint(spec.tensor_files)
    }


def _decoded(given: EngineInput, param: str) -> bytes:
    if given.datatype == BYTES:
        raise InvalidRequestError(f"{param}: {BYTES} are texts; give them as data.", param=param)
    try:
        found = b64decode(given.base64 or "", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"{param}: must be base64.", param=param) from None
    if (wanted := num_bytes(given.datatype, given.shape)) != len(found):
        shown = described(given.datatype, given.shape)
        message = f"{param}: a tensor of {shown} has {wanted} bytes, not {len(found)}."
        raise InvalidRequestError(message, param=param)
    return found


def _packed(datatype: str, data: Sequence[bool | float | str], param: str) -> bytes:
    """Write elements as the engine reads them."""
    wrong = InvalidRequestError(f"{param}: an element is no {datatype}.", param=param)
    kinds = {type(each) for each in data}
    match datatype:
        case "BYTES" if kinds <= {str}:
            encoded = [str(each).encode() for each in data]
            return b"".join(len(each).to_bytes(_LENGTH_BYTES, "little") + each for each in encoded)
        case "BOOL" if kinds <= {bool}:
            return bytes(bool(each) for each in data)
        case "BF16":
            raise InvalidRequestError(f"{param}: give a tensor of BF16 as base64.", param=param)
        case "FP16" | "FP32" | "FP64" if kinds <= {int, float}:
            return _floats(_DTYPES[datatype], data, wrong)
        case _ if datatype in _DTYPES and kinds <= {int}:
            return _integers(datatype, data, wrong)
    raise wrong


def _floats(dtype: str, data: Sequence[object], wrong: InvalidRequestError) -> bytes:
    with np.errstate(over="ignore"):
        try:
            found = np.array(data, dtype=np.float64).astype(dtype)
        except OverflowError:
            raise wrong from None
    if not np.isfinite(found).all():
        raise wrong
    return found.tobytes()


def _integers(datatype: str, data: Sequence[object], wrong: InvalidRequestError) -> bytes:
    bits = 8 * ELEMENT_BYTES[datatype]
    least, most = (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if not all(isinstance(each, int) and least <= each <= most for each in data):
        raise wrong
    return np.array(data, dtype=_DTYPES[datatype]).tobytes()
