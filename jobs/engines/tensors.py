"""Tensors of engines' models by name: what models declare, and what a request passes and asks for."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Self
from uuid import UUID

from jobs.database.base import JsonObject
from jobs.errors import InvalidRequestError, UnsupportedParameterError

# Bytes of one element, by Triton's names of types.
ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
# Texts, each preceded by its length.
BYTES: Final = "BYTES"
DATATYPES: Final = (*ELEMENT_BYTES, BYTES)
# A message that lists more tensors than this is no help.
_MOST_LISTED: Final = 40


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A tensor that a model declares.

    Attributes:
        datatype: one of DATATYPES.
        shape: its dimensions without that of batches; -1: any length.
    """

    datatype: str
    shape: tuple[int, ...]

    def allows(self, datatype: str, shape: tuple[int, ...]) -> bool:
        """Return True if a tensor of this type and shape is such a one."""
        if datatype != self.datatype or len(shape) != len(self.shape):
            return False
        return all(own in (-1, given) for own, given in zip(self.shape, shape, strict=True))

    def __str__(self) -> str:
        """Write it as errors do: `FP32 [-1, 16]`."""
        return described(self.datatype, self.shape)


Declared = Mapping[str, DeclaredTensor]


def described(datatype: str, shape: Iterable[int]) -> str:
    """Write a type and a shape as errors do."""
    return f"{datatype} {list(shape)}"


@dataclass(frozen=True, slots=True)
class DeclaredTensors:
    """What a model declares, as far as a request may name it.

    Attributes:
        inputs: by name.
        outputs: by name.
        own: names of the inputs and outputs that Longbatch sets and reads itself.
    """

    inputs: Declared = field(default_factory=dict)
    outputs: Declared = field(default_factory=dict)
    own: frozenset[str] = frozenset()

    @property
    def is_any(self) -> bool:
        """True if a request may name one."""
        return bool(self.inputs or self.outputs)

    def common(self, other: "DeclaredTensors") -> "DeclaredTensors":
        """Return what both declare in the same way."""
        inputs, outputs = _common(self.inputs, other.inputs), _common(self.outputs, other.outputs)
        return DeclaredTensors(inputs, outputs, self.own | other.own)

    def written(self) -> JsonObject:
        """Write them as JSON, as an engine's row has them."""
        return {
            "inputs": {name: _written(each) for name, each in sorted(self.inputs.items())},
            "outputs": {name: _written(each) for name, each in sorted(self.outputs.items())},
            "own": sorted(self.own),
        }

    @classmethod
    def read(cls, written: Mapping[str, Any] | None) -> Self:
        """Read what an engine's row has; null is nothing."""
        if written is None:
            return cls()
        return cls(_read(written["inputs"]), _read(written["outputs"]), frozenset(written["own"]))


# What all engines of a model declare, by model.
ModelTensors = Mapping[str, DeclaredTensors]
NOTHING_DECLARED: Final = DeclaredTensors()


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor that a request passes to the engine.

    Attributes:
        datatype: one of DATATYPES.
        shape: its dimensions without that of batches.
        data: its elements in C order, little-endian; of BYTES each preceded by its length in 4 bytes.
        file_id: the tenant's file that holds them, while `data` is empty. None: `data` has them.
    """

    datatype: str
    shape: tuple[int, ...]
    data: bytes = field(default=b"", repr=False)
    file_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A file that a request names as a tensor's elements.

    Attributes:
        file_id: of the tenant's.
        num_bytes: of those elements, and so of the file.
        param: the field that names it.
    """

    file_id: UUID
    num_bytes: int
    param: str


@dataclass(frozen=True, slots=True)
class TensorRequest:
    """The tensors that a request passes and gets besides those of its prompt, sampling and answer.

    Attributes:
        inputs: that go to the engine, by name.
        outputs: names of those that are kept of its responses.
    """

    inputs: Mapping[str, TensorInput] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[TensorFile, ...]:
        """The files that hold elements of its inputs."""
        return tuple(
            TensorFile(each.file_id, num_bytes(each.datatype, each.shape), f"engine_inputs.{name}.file_id")
            for name, each in self.inputs.items()
            if each.file_id is not None
        )

    @property
    def is_empty(self) -> bool:
        """True if it names none."""
        return not self.inputs and not self.outputs

    def check(self, declared: DeclaredTensors, model: str) -> None:
        """Check it against what a model declares.

        Raises:
            InvalidRequestError: a tensor is Longbatch's own, not declared, or of another type or shape.
            UnsupportedParameterError: the model declares none.
        """
        if self.is_empty:
            return
        if not declared.is_any:
            param = "engine_inputs" if self.inputs else "engine_outputs"
            message = (
                f"{param}: not every engine of the model {model!r} declares tensors; those on Triton do, once"
                " their worker has seen them, and are forgotten after a day."
            )
            raise UnsupportedParameterError(message, param=param)
        for name, given in self.inputs.items():
            param = f"engine_inputs.{name}"
            found = _find(name, declared.inputs, declared.own, "input", param=param, model=model)
            if not found.allows(given.datatype, given.shape):
                message = f"{param}: must be {found}, not {described(given.datatype, given.shape)}."
                raise InvalidRequestError(message, param=param)
        for index, name in enumerate(self.outputs):
            param = f"engine_outputs.{index}"
            _find(name, declared.outputs, declared.own, "output", param=param, model=model)

    def written(self) -> str:
        """Write it as the canonical text that is stored."""
        inputs = {name: _written(each) | _written_data(each) for name, each in self.inputs.items()}
        return json.dumps({"tensors": {"inputs": inputs, "outputs": self.outputs}}, sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a stored one."""
        found = json.loads(text)["tensors"]
        inputs = {
            name: TensorInput(each["datatype"], tuple(each["shape"]), *_read_data(each))
            for name, each in found["inputs"].items()
        }
        return cls(inputs, tuple(found["outputs"]))


NO_TENSORS: Final = TensorRequest()


def num_bytes(datatype: str, shape: Iterable[int]) -> int:
    """Return the size of a tensor; BYTES have no fixed one."""
    return prod(shape) * ELEMENT_BYTES[datatype]


def _find(
    name: str, declared: Declared, own: frozenset[str], kind: str, *, param: str, model: str
) -> DeclaredTensor:
    if name in declared:
        return declared[name]
    if name in own:
        sees_to = (
            "Longbatch sets this input itself" if kind == "input" else "Longbatch reads this output itself"
        )
        raise InvalidRequestError(f"{param}: {sees_to}.", param=param)
    listed = [f"{each} ({tensor})" for each, tensor in sorted(declared.items())]
    shown = ", ".join(listed[:_MOST_LISTED]) or "none"
    more = f" and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
    message = f"{param}: the model {model!r} declares no such {kind}; it declares {shown}{more}."
    raise InvalidRequestError(message, param=param)


def _common(first: Declared, second: Declared) -> dict[str, DeclaredTensor]:
    return {name: each for name, each in first.items() if second.get(name) == each}


def _written(tensor: DeclaredTensor | TensorInput) -> JsonObject:
    return {"datatype": tensor.datatype, "shape": list(tensor.shape)}


def _written_data(tensor: TensorInput) -> JsonObject:
    if tensor.file_id is not None:
        return {"file": tensor.file_id.hex}
    return {"base64": b64encode(tensor.data).decode()}


def _read_data(written: Mapping[str, Any]) -> tuple[bytes, UUID | None]:
    return (b"", UUID(hex=written["file"])) if "file" in written else (b64decode(written["base64"]), None)


def _read(written: Mapping[str, Any]) -> dict[str, DeclaredTensor]:
    return {name: DeclaredTensor(each["datatype"], tuple(each["shape"])) for name, each in written.items()}
