"""How models of different kinds are asked, and how they answer: the interface, and what they share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np

from worker.engine.deltas import Piece
from worker.engine.request import Request, Sampling, Tensors

Kind = Literal["ids", "ensemble", "bls", "vllm"]
# The raw bytes of a response's tensors by name.
Outputs = Mapping[str, bytes]

_LENGTH_BYTES: Final = 4  # in front of each element of a BYTES tensor, little-endian


@dataclass(frozen=True, slots=True)
class Stop:
    """A request that ends another one of the same id.

    Attributes:
        model_name: whom it is sent to.
        tensors: its inputs.
    """

    model_name: str
    tensors: Tensors


class Adapter(Protocol):
    """One kind of model; frozen, so that two of them can be compared."""

    @property
    def kind(self) -> Kind:
        """Which one."""

    @property
    def model_name(self) -> str:
        """The model that requests are sent to."""

    @property
    def is_engine(self) -> bool:
        """The model itself generates, so what it says of a request's end is true of the engine."""

    @property
    def takes_text(self) -> bool:
        """It is sent text and answers with text: no run of a job can go on where another one ended."""

    @property
    def adds_bos(self) -> bool:
        """The server itself puts a beginning-of-text token in front of the text."""

    @property
    def is_streaming(self) -> bool:
        """Answers come in pieces, while they are generated."""

    @property
    def is_reached(self) -> bool:
        """A request to stop, or the end of its stream, ends a request inside the engine."""

    def tensors(self, request: Request) -> Tensors:
        """The request as the model takes it."""

    def stop(self) -> Stop | None:
        """What ends a request and lets its stream end in peace; None: only cutting the stream does."""

    def piece(self, outputs: Outputs) -> Piece | None:
        """What a response says; None: nothing."""


def text_in(raw: bytes) -> str | None:
    """The first element of a BYTES tensor; None: it has none. Bytes that are no UTF-8 become U+FFFD."""
    if len(raw) < _LENGTH_BYTES:
        return None
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "little")
    return raw[_LENGTH_BYTES:end].decode(errors="replace")


def bytes_tensor(*texts: str) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    """The texts as a BYTES tensor.

    Shapes:
        returns `[texts]`.
    """
    return np.array([text.encode() for text in texts], dtype=np.object_)


def sampling_tensors(sampling: Sampling, inputs: frozenset[str], *, prefix: str) -> Tensors:
    """Build the tensors of what was asked for; the names of some differ between releases.

    Top-k 0 means all tokens only beside a top-p: the engine's own top-p is 0, and 0 for both is greedy.

    Args:
        sampling: what was asked for.
        inputs: the tensors that the model declares.
        prefix: in front of `top_k` and `top_p`.
    """
    tensors: Tensors = {}
    if sampling.is_greedy:
        tensors[f"{prefix}top_k"] = np.array([[1]], dtype=np.int32)
    else:
        top_p = 1.0 if sampling.top_p is None else sampling.top_p
        tensors["temperature"] = np.array([[sampling.temperature]], dtype=np.float32)
        tensors[f"{prefix}top_k"] = np.array([[sampling.top_k or 0]], dtype=np.int32)
        tensors[f"{prefix}top_p"] = np.array([[top_p]], dtype=np.float32)
    if sampling.seed is not None:
        name = "seed" if "seed" in inputs else "random_seed"
        tensors[name] = np.array([[sampling.seed % 2**64]], dtype=np.uint64)
    if sampling.min_tokens is not None:
        name = "min_tokens" if "min_tokens" in inputs else "min_length"
        tensors[name] = np.array([[sampling.min_tokens]], dtype=np.int32)
    return tensors
