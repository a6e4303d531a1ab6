"""The header of a GGUF file: what a model says of itself, without its weights.

Source: GGUF specification, versions 2 and 3. The package `gguf` reads the same keys, but takes 5 s for 98,000
strings, of which it makes an array each; this takes 0.1 s.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self, TypeAlias

from jobs.errors import LongbatchError

GgufValue: TypeAlias = "str | int | float | bool | list[GgufValue]"

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
# By the number of the type.
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
# The largest known vocabularies take 20 MB. A list of numbers takes sixteen times its bytes in memory.
_MOST_BYTES: Final = 2**27
_MAX_DIMENSIONS: Final = 4
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]


class GgufError(LongbatchError):
    """The GGUF file cannot be used."""

    code = "gguf_error"


@dataclass(frozen=True, slots=True)
class Gguf:
    """A model file's header.

    Attributes:
        path: the file.
        values: by key, for example `tokenizer.ggml.model`.
    """

    path: Path
    values: Mapping[str, GgufValue]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header of a file, or of the first file of a model in several.

        Raises:
            GgufError: the file is missing, or no GGUF file.
        """
        try:
            with path.open("rb") as file:
                return cls(path, _Reader(file, path.stat().st_size).header())
        except OSError as error:
            raise GgufError(f"Cannot read {path}: {error.strerror}.") from error
        except RecursionError as error:
            raise GgufError(f"{path} is no GGUF file that can be read: its lists are nested.") from error
        except (struct.error, UnicodeDecodeError, _MalformedError) as error:
            raise GgufError(f"{path} is no GGUF file that can be read: {error}.") from error

    @classmethod
    def read_shapes(cls, path: Path) -> dict[str, tuple[int, ...]]:
        """Read the names of a file's tensors, and the shape of each, the shortest stride first.

        Raises:
            GgufError: the file is missing, or no GGUF file.
        """
        try:
            with path.open("rb") as file:
                return _Reader(file, path.stat().st_size).shapes()
        except OSError as error:
            raise GgufError(f"Cannot read {path}: {error.strerror}.") from error
        except (struct.error, UnicodeDecodeError, RecursionError, _MalformedError) as error:
            raise GgufError(f"{path} is no GGUF file that can be read: {error}.") from error

    def text(self, key: str) -> str | None:
        """Return a text. Returns None if the file has none of this key."""
        found = self.values.get(key)
        return found if isinstance(found, str) else None

    def number(self, key: str) -> int | None:
        """Return a whole number. Returns None if the file has none of this key."""
        found = self.values.get(key)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a flag, or the default if the file has none of this key."""
        found = self.values.get(key)
        return found if isinstance(found, bool) else default

    def texts(self, key: str) -> list[str]:
        """Return a list of texts; empty if the file has none of this key."""
        found = self.values.get(key)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers; empty if the file has none of this key."""
        found = self.values.get(key)
        return [each for each in found if isinstance(each, int | float)] if isinstance(found, list) else []

    @property
    def context_length(self) -> int:
        """The most tokens of prompt and answer that the model was made for.

        Raises:
            GgufError: the file does not say it.
        """
        key = f"{self.text('general.architecture')}.context_length"
        found = self.number(key)
        if found is None or found < 1:
            raise GgufError(f"{self.path} has no {key}: it is no language model.")
        return found


class _MalformedError(ValueError):
    pass


class _Reader:
    """Reads a header; every length is checked before memory is taken for it."""

    def __init__(self, file: BinaryIO, num_bytes: int) -> None:
        self._file = file
        self._num_bytes = min(num_bytes, _MOST_BYTES)
        self._num_tensors = 0

    def header(self) -> dict[str, GgufValue]:
        if self._file.read(4) != _MAGIC:
            raise _MalformedError("it does not begin with GGUF")
        version = self._scalar(_U32)
        if version not in _VERSIONS:
            raise _MalformedError(f"its version {version} is not one of {_VERSIONS}")
        self._num_tensors = int(self._scalar(_U64))
        return {self._text(): self._value(int(self._scalar(_U32))) for _ in range(self._length())}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        self.header()
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(self._num_tensors):
            name = self._text()
            num_dimensions = int(self._scalar(_U32))
            if num_dimensions > _MAX_DIMENSIONS:
                raise _MalformedError("a tensor has too many dimensions")
            found[name] = tuple(int(self._scalar(_U64)) for _ in range(num_dimensions))
            self._bytes(_U32.size + _U64.size)  # its type and place
        return found

    def _value(self, kind: int) -> GgufValue:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise _MalformedError(f"a value has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[GgufValue]:
        kind, length = int(self._scalar(_U32)), self._length()
        if kind not in _SCALARS:
            return [self._value(kind) for _ in range(length)]
        one = _SCALARS[kind]
        return list(struct.unpack(f"<{length}{one.format[1:]}", self._bytes(length * one.size)))

    def _text(self) -> str:
        return self._bytes(self._length()).decode()

    def _length(self) -> int:
        length = int(self._scalar(_U64))
        if self._file.tell() + length > self._num_bytes:
            raise _MalformedError("a length in it is larger than the file, or than any header")
        return length

    def _scalar(self, kind: struct.Struct) -> int | float | bool:
        (found,) = kind.unpack(self._file.read(kind.size))
        value: int | float | bool = found
        return value

    def _bytes(self, length: int) -> bytes:
        if self._file.tell() + length > self._num_bytes:
            raise _MalformedError("its header is larger than the file, or than 128 MiB")
        found = self._file.read(length)
        if len(found) < length:
            raise _MalformedError("it ends too early")
        return found
