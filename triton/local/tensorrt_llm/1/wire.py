"""The tensors of TensorRT-LLM's backend: read from requests, written to responses."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import triton_python_backend_utils as pb_utils

from .speech import Ask

# Objects of Triton's stub, which has no types.
PbRequest: TypeAlias = Any
PbSender: TypeAlias = Any
PbResponse: TypeAlias = Any
PbError: TypeAlias = Any
PbMetric: TypeAlias = Any
PbTensor: TypeAlias = Any
Array: TypeAlias = Any

# Triton's stub is built for numpy 1 and misreads arrays of numpy 2. Only the transformers engine runs with
# numpy 2, on machines made for torch, and there torch passes the tensors.
_IS_NUMPY_1 = np.lib.NumpyVersion(np.__version__) < "2.0.0"


class BadRequestError(ValueError):
    """The engine refuses the request."""


def read_ask(request: PbRequest) -> Ask:
    """Read what the request asks for.

    Shapes:
        input_ids: INT32 `[1, tokens]`; input_lengths, request_output_len, end_id, min_length: INT32 `[1, 1]`.
        runtime_top_k: INT32 `[1, 1]`; runtime_top_p, temperature: FP32 `[1, 1]`.
        stop_words_list: INT32 `[1, 2, n]`, row 0 token ids, row 1 the words' ends, padded with -1.

    Raises:
        BadRequestError: a value is invalid; refuse the request.
    """
    given = read_input(request, "input_ids")
    if given.shape[0] != 1:
        raise BadRequestError(f"one prompt a request, not {given.shape[0]}")
    ids = given.astype(np.int32).ravel()
    length = scalar(request, "input_lengths", len(ids))
    max_tokens = scalar(request, "request_output_len", 0)
    if not 0 < length <= len(ids):
        raise BadRequestError(f"input_lengths is {length} but input_ids holds {len(ids)} tokens")
    if max_tokens < 1:
        raise BadRequestError(f"request_output_len must be above 0, not {max_tokens}")
    if scalar(request, "beam_width", 1) != 1:
        raise BadRequestError("beam_width exceeds max_beam_width (1)")
    seed = read_input(request, "random_seed")
    return Ask(
        ids=ids[:length].copy(),
        max_tokens=max_tokens,
        seed=None if seed is None else int(seed.ravel()[0]),
        temperature=_temperature(request),
        ends=scalar(request, "end_id", -1) >= 0,
        stop_words=_words(read_input(request, "stop_words_list")),
        min_tokens=scalar(request, "min_length", 0),
    )


def is_stop(request: PbRequest) -> bool:
    """Return True if the request only stops another one with the same id."""
    return bool(scalar(request, "stop", 0))


def streams(request: PbRequest) -> bool:
    """Return True if the tokens must be sent as they come."""
    return bool(scalar(request, "streaming", 0))


def wants_perf_metrics(request: PbRequest) -> bool:
    """Return True if the final response must count the request's KV blocks."""
    return bool(scalar(request, "return_perf_metrics", 0))


def wants_log_probs(request: PbRequest) -> bool:
    """Return True if log probabilities are requested. This engine has none and returns zeros."""
    return bool(scalar(request, "return_log_probs", 0))


class ResponseStream:
    """The response stream of one request. A disconnected client counts as cancelled."""

    def __init__(self, sender: PbSender, *, with_log_probs: bool) -> None:
        self._sender = sender
        self._with_log_probs = with_log_probs
        self._is_broken = False
        self._num_sent = 0
        # Further tensors of a response, by its tokens.
        self.extras: Callable[..., list[PbTensor]] | None = None
        self.counts: Callable[[], dict[str, int]] | None = None  # of KV blocks, for the final response

    def send(self, ids: list[int], *, final: bool) -> None:
        """Send these tokens to the client.

        Shapes:
            output_ids: INT32 `[1, 1, tokens]`; sequence_length: INT32 `[1, 1]`, the tokens of this response.
            kv_cache_…_blocks: INT32 `[1, 1]`.
        """
        tensors = [
            made("output_ids", np.array([[ids]], dtype=np.int32).reshape(1, 1, len(ids))),
            made("sequence_length", np.array([[len(ids)]], dtype=np.int32)),
        ]
        if self._with_log_probs:
            tensors += [
                made("cum_log_probs", np.zeros((1, 1), dtype=np.float32)),
                made("output_log_probs", np.zeros((1, 1, len(ids)), dtype=np.float32)),
            ]
        if final and self.counts is not None:
            tensors += [
                made(name, np.array([[count]], dtype=np.int32)) for name, count in self.counts().items()
            ]
        if self.extras is not None:
            tensors += self.extras(ids, is_first=not self._num_sent, final=final)
        self._num_sent += 1
        self._send(pb_utils.InferenceResponse(tensors), final=final)

    def fail(self, message: str) -> None:
        """End the stream with an internal error."""
        self._end(pb_utils.TritonError(message))

    def refuse(self, message: str) -> None:
        """End the stream because its request is invalid."""
        self._end(pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))

    def cancel(self) -> None:
        """End the stream because its client cancelled."""
        self._end(pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED))

    def finish(self) -> None:
        """End the stream without a response."""
        self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Return True if the client cancelled or disconnected."""
        return self._is_broken or bool(self._sender.is_cancelled())

    def _end(self, error: PbError) -> None:
        # Send the end separately: models that call this one (BLS) would wait forever after an error that is
        # marked final.
        self._send(pb_utils.InferenceResponse(error=error), final=False)
        if not self._is_broken:
            self.finish()

    def _send(self, response: PbResponse, *, final: bool) -> None:
        try:
            self._sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
        except pb_utils.TritonModelException as error:
            self._is_broken = True
            pb_utils.Logger.log_warn(f"a response could not be sent: {error}")


def read_input(request: PbRequest, name: str) -> Array | None:
    """Read the values of an input. Returns None if it is absent."""
    found = pb_utils.get_input_tensor_by_name(request, name)
    if found is None:
        return None
    if _IS_NUMPY_1:
        return found.as_numpy()
    from torch import from_dlpack

    return from_dlpack(found).numpy()


def made(name: str, values: Array) -> PbTensor:
    """Create an output tensor."""
    if _IS_NUMPY_1 or values.size == 0:  # the stub takes an array of numpy 2 for an empty one
        return pb_utils.Tensor(name, values)
    from torch import from_numpy

    return pb_utils.Tensor.from_dlpack(name, from_numpy(values))


def scalar(request: PbRequest, name: str, absent: int) -> int:
    """Return the one value of an input, or `absent` if it is missing."""
    found = read_input(request, name)
    return absent if found is None or found.size == 0 else int(found.ravel()[0])


def read_number(request: PbRequest, name: str, absent: float) -> float:
    """Return the one value of an input, or `absent` if it is missing."""
    found = read_input(request, name)
    return absent if found is None or found.size == 0 else float(found.ravel()[0])


def _temperature(request: PbRequest) -> float:
    """Return the temperature, 0 for a greedy request.

    As in TensorRT-LLM's sampling layers: top-k and top-p are 0 unless given, and both at 0 mean top-k 1.

    Raises:
        BadRequestError: top-p is not between 0 and 1; refuse the request.
    """
    top_k, top_p = read_number(request, "runtime_top_k", 0), read_number(request, "runtime_top_p", 0)
    if not 0 <= top_p <= 1:
        raise BadRequestError(f"[TensorRT-LLM][ERROR] Assertion failed: topP is {top_p} (samplingConfig.cpp)")
    is_greedy = top_k == 1 or (top_k == 0 and top_p == 0)
    return 0.0 if is_greedy else read_number(request, "temperature", 1.0)


def _words(lists: Array) -> tuple[tuple[int, ...], ...]:
    if lists is None:
        return ()
    ids, ends = lists.reshape(2, -1).tolist()
    bounds = [0, *(end for end in ends if end > 0)]
    return tuple(tuple(ids[start:end]) for start, end in pairwise(bounds))
