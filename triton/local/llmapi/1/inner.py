"""The local `tensorrt_llm`, as the other models of its server ask it."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import triton_python_backend_utils as pb_utils

# An object of Triton's stub, which has no types.
PbTensor: TypeAlias = Any

COUNTS = ("kv_cache_reused_blocks", "kv_cache_alloc_new_blocks", "kv_cache_alloc_total_blocks")

# Responses of ended streams, and when each ended. Triton drops its own reference within milliseconds.
_ended: deque[tuple[float, Iterator[Any]]] = deque()
_ended_lock = threading.RLock()  # a collection within may end another stream
_KEPT_SECONDS = 1.0
_OUTPUTS = ["output_ids", "sequence_length", *COUNTS]


def stream(
    prompt: list[int],
    *,
    max_tokens: int,
    end_id: int,
    sampling: list[PbTensor],
    request_id: str,
    counts: dict[str, int] | None = None,
) -> Iterator[list[int]]:
    """Yield the tokens of each of the engine's responses.

    Args:
        prompt: token ids.
        max_tokens: limit of the answer.
        end_id: ends the answer; -1 for none.
        sampling: further tensors of the request.
        request_id: `stop` takes it.
        counts: takes the request's KV blocks, by the engine's names, from its last response.

    Raises:
        TritonModelException: the engine failed.
    """
    values = {
        "input_ids": [prompt],
        "input_lengths": [[len(prompt)]],
        "request_output_len": [[max_tokens]],
        "end_id": [[end_id]],
    }
    tensors = [pb_utils.Tensor(name, np.array(value, dtype=np.int32)) for name, value in values.items()]
    tensors.append(pb_utils.Tensor("streaming", np.array([[True]])))
    if counts is not None:
        tensors.append(pb_utils.Tensor("return_perf_metrics", np.array([[True]])))
    for response in responses(tensors + sampling, _OUTPUTS, request_id=request_id):
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        new = pb_utils.get_output_tensor_by_name(response, "output_ids")
        if new is None:  # the only sign of an error in Triton 2.51
            raise pb_utils.TritonModelException("the engine failed")
        for name in COUNTS if counts is not None else ():
            if (found := pb_utils.get_output_tensor_by_name(response, name)) is not None:
                counts[name] = int(found.as_numpy().item(0))
        yield new.as_numpy().ravel().tolist()


def stop(request_id: str) -> None:
    """Stop the engine's request with this id."""
    one = np.array([[1]], dtype=np.int32)
    names = ("input_ids", "input_lengths", "request_output_len")
    tensors = [pb_utils.Tensor(name, one) for name in names]
    tensors.append(pb_utils.Tensor("stop", np.array([[True]])))
    for _ in responses(tensors, _OUTPUTS, request_id=request_id):
        pass


def responses(tensors: list[PbTensor], outputs: list[str], *, request_id: str = "") -> Iterator[Any]:
    """Yield the engine's responses, and keep them until Triton drops its reference to them.

    A thread of Triton 2.51 drops it after the last response without the interpreter lock. If it is the last
    reference, that thread frees the tensors' arrays while Python runs, which corrupts its memory: the process
    crashes, and its requests fail or wait forever. Each question about cancellation delays that thread.
    Fixed in Triton 24.12.

    Args:
        tensors: the request's inputs.
        outputs: names of the tensors that the responses must have.
        request_id: `stop` takes it.
    """
    found = pb_utils.InferenceRequest(
        model_name="tensorrt_llm", request_id=request_id, inputs=tensors, requested_output_names=outputs
    ).exec(decoupled=True)
    try:
        yield from found
    finally:
        _keep(found)


def _keep(ended: Iterator[Any]) -> None:
    now = time.monotonic()
    with _ended_lock:
        _ended.append((now, ended))
        while _ended[0][0] < now - _KEPT_SECONDS:
            _ended.popleft()
