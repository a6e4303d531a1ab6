"""The translation of Triton's error messages to our errors."""

import re
from typing import Final

import grpc

from jobs.errors import EngineError, EngineLostError, EngineUnavailableError, RetryableEngineError
from worker.engine.storable import storable

# Inside a stream Triton sends no status code, only a message. Messages not listed here are retried.
_REFUSED: Final = (
    "exceeds maximum input length",
    "exceeds max_input_len",
    "unexpected inference input",
    "expected inputs",
    "unexpected shape",
    "inference input",
    "must be above 0",
    "must be strictly positive",
    "exceeds max_beam_width",
    "invalid argument",
    # Of the LLM API, whose exceptions `llmapi` passes on.
    "should not exceed max_",
    "default_max_tokens",
    "only supported in decoupled mode",
    "lora_path does not exist",
)
_NOT_SERVING: Final = (
    "unknown model",
    "is not ready",
    "not at ready state",
    "no available versions",
    "shutting down",
    "is stopping",
)
# Of TensorRT-LLM's cache of adapters.
_NO_WEIGHTS: Final = "not found in cache. please send lora weights"
# TensorRT-LLM validates a request with assertions when it accepts it. An assertion in an iteration ends all
# requests and names the `forward…` function that failed.
_ASSERTED: Final = "[tensorrt-llm][error] assertion failed"
_OF_THE_ENGINE: Final = re.compile(
    r"error in forward|cuda|cublas|nccl|\bmpi|memory|workspace|gemm|kernel|kvcache|free ?block|batch slot"
)


class AdapterMissError(RetryableEngineError):
    """The engine does not have the adapter that the request names; send its weights."""


def stream_error(message: str, *, has_said: bool) -> EngineError:
    """Translate an error received on a stream.

    Args:
        message: the server's message.
        has_said: output came before it, so the engine had accepted the request.
    """
    said = storable(message)
    lowered = message.lower()
    if any(words in lowered for words in _NOT_SERVING):
        return EngineUnavailableError(said=said)
    if _NO_WEIGHTS in lowered:
        return AdapterMissError(said=said)
    if not has_said and (any(words in lowered for words in _REFUSED) or _is_asserted_of_request(lowered)):
        return EngineError(said, said=said)
    return RetryableEngineError(said=said)


def call_error(error: BaseException) -> EngineError:
    """Translate the error of a call that the server did not end cleanly."""
    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
    said = said_by(error)
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return EngineError(said, said=said)
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
        return EngineUnavailableError(said=said)
    if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED):
        return RetryableEngineError(said=said)
    return EngineLostError(said=said)


def said_by(error: BaseException) -> str:
    """Return what the server said of a failed call, in storable form."""
    return storable(str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error))


def _is_asserted_of_request(lowered: str) -> bool:
    before, asserted, after = lowered.partition(_ASSERTED)
    words = before + after.partition("\n")[0]  # without the stack trace, which contains other names
    return bool(asserted) and _OF_THE_ENGINE.search(words) is None
