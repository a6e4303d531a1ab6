"""Vectors: packed as they are stored, cut to fewer dimensions, and as OpenAI's API writes them."""

import base64
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from jobs.database.base import JsonObject

Encoding = Literal["float", "base64"]
FLOAT_BYTES: Final = 4
_FLOAT: Final = np.dtype("<f4")


class EmbeddedInput(Protocol):
    """A job that embedded one input of a request."""

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the input."""


def pack(numbers: Sequence[float] | npt.NDArray[np.float32]) -> bytes:
    """Pack a vector for storage.

    Raises:
        ValueError: it is empty, or not made of finite numbers.
    """
    return _packed(np.asarray(numbers, dtype=_FLOAT))


def pack_base64(text: str) -> bytes:
    """Pack a vector that came as base64 of float32, little-endian.

    Raises:
        ValueError: as `pack`, or it is no base64 of whole numbers.
    """
    return _packed(np.frombuffer(base64.b64decode(text, validate=True), dtype=_FLOAT))


def _packed(vector: npt.NDArray[np.float32]) -> bytes:
    if vector.ndim != 1 or not len(vector) or not np.isfinite(vector).all():
        raise ValueError("a vector is a list of finite numbers, at least one")
    return vector.tobytes()


def num_dimensions(packed: bytes) -> int:
    """Return how many numbers a packed vector has."""
    return len(packed) // FLOAT_BYTES


def cut(packed: bytes, dimensions: int) -> bytes:
    """Keep the first dimensions of a vector, and scale them to length 1.

    For models that were trained so (Matryoshka). Numbers that are all 0 stay so.
    """
    kept = np.frombuffer(packed, dtype=_FLOAT)[:dimensions]
    length = float(np.linalg.norm(kept))
    return (kept / length if length else kept).astype(_FLOAT).tobytes()


def unpack(packed: bytes) -> list[float]:
    """Return the numbers of a packed vector."""
    found: list[float] = np.frombuffer(packed, dtype=_FLOAT).tolist()
    return found


def embeddings_object(
    model: str, jobs: Sequence[EmbeddedInput], vectors: Sequence[bytes], *, encoding: Encoding
) -> JsonObject:
    """Build OpenAI's response object; inputs, jobs and vectors are in the same order."""
    data: list[Mapping[str, object]] = [
        {"object": "embedding", "index": index, "embedding": _written(packed, encoding)}
        for index, packed in enumerate(vectors)
    ]
    num_tokens = sum(job.prompt_tokens or 0 for job in jobs)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _written(packed: bytes, encoding: Encoding) -> str | list[float]:
    return base64.b64encode(packed).decode() if encoding == "base64" else unpack(packed)
