"""What the engine is asked to do, as the tensors of TensorRT-LLM's backend."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.tokens import TokenIds

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the engine picks tokens; None leaves it to the engine, which is greedy then."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine is asked to do.

    Attributes:
        request_id: unique among the engine's requests.
        ids: the prompt.
        max_tokens: output tokens after which it ends.
        end_id: the token at which it ends.
        pad_id: fills up batches.
        sampling: how tokens are picked.
    """

    request_id: str
    ids: TokenIds
    max_tokens: int
    end_id: int
    pad_id: int
    sampling: Sampling = Sampling()


def request_tensors(request: Request, inputs: frozenset[str]) -> Tensors:
    """The tensors of a request.

    Args:
        request: what is asked.
        inputs: the tensors that the model declares, which decide how the seed is named.

    Shapes:
        input_ids: INT32 `[1, tokens]`; every other one `[1, 1]`.
    """
    tensors: Tensors = {
        "input_ids": request.ids.reshape(1, -1).astype(np.int32, copy=False),
        "input_lengths": np.array([[len(request.ids)]], dtype=np.int32),
        "request_output_len": np.array([[request.max_tokens]], dtype=np.int32),
        "streaming": np.array([[True]]),
        "end_id": np.array([[request.end_id]], dtype=np.int32),
        "pad_id": np.array([[request.pad_id]], dtype=np.int32),
    }
    return tensors | _sampling_tensors(request.sampling, inputs)


def stop_tensors() -> Tensors:
    """The tensors that end the request of the same id; of the others nothing is looked at."""
    one = np.array([[1]], dtype=np.int32)
    return {"stop": np.array([[True]]), "input_ids": one, "input_lengths": one, "request_output_len": one}


def _sampling_tensors(sampling: Sampling, inputs: frozenset[str]) -> Tensors:
    """The tensors of what was asked for; the seed's name differs between releases.

    The engine's own top-k is 1, which makes any temperature greedy: who asks for randomness gets it.
    """
    tensors: Tensors = {}
    is_random = bool(sampling.temperature) or sampling.top_p is not None
    top_k = sampling.top_k if sampling.top_k is not None else (0 if is_random else None)
    if sampling.temperature == 0:
        top_k = 1
    elif sampling.temperature is not None:
        tensors["temperature"] = np.array([[sampling.temperature]], dtype=np.float32)
    if top_k is not None:
        tensors["runtime_top_k"] = np.array([[top_k]], dtype=np.int32)
    if sampling.top_p is not None:
        tensors["runtime_top_p"] = np.array([[sampling.top_p]], dtype=np.float32)
    if sampling.seed is not None:
        name = "seed" if "seed" in inputs else "random_seed"
        tensors[name] = np.array([[sampling.seed % 2**64]], dtype=np.uint64)
    return tensors
