"""The translation of a server's error messages: the one place where engine errors are classified."""

import re
from typing import Final

import grpc

from jobs.errors import EngineError, EngineLostError, EngineUnavailableError, RetryableEngineError

# Postgres stores neither NUL nor lone surrogates; a model can write the first.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

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
)
_NOT_SERVING: Final = (
    "unknown model",
    "is not ready",
    "not at ready state",
    "no available versions",
    "shutting down",
    "is stopping",
)
# TensorRT-LLM validates a request with assertions when it accepts it. An assertion in an iteration ends all
# requests and names the `forward…` function that failed.
_ASSERTED: Final = "[tensorrt-llm][error] assertion failed"
_OF_THE_ENGINE: Final = re.compile(
    r"error in forward|cuda|cublas|nccl|\bmpi|memory|workspace|gemm|kernel|kvcache|free ?block|batch slot"
)
# Characters kept of the server's message; a stack trace may follow it.
_MAX_SAID: Final = 500


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
    if not has_said and (any(words in lowered for words in _REFUSED) or _is_asserted_of_request(lowered)):
        return EngineError(said, said=said)
    return RetryableEngineError(said=said)


def call_error(error: Exception) -> EngineError:
    """Translate the error of a call that the server did not end cleanly."""
    code = error.code() if isinstance(error, grpc.Call) else None
    said = storable(str(error.details() if isinstance(error, grpc.Call) else error))
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return EngineError(said, said=said)
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
        return EngineUnavailableError(said=said)
    if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED):
        return RetryableEngineError(said=said)
    return EngineLostError(said=said)


def storable(words: str) -> str:
    """Cut a server's message to what a row and a log line can hold: no NUL, no stack trace."""
    return sanitize(words[:_MAX_SAID])[0]


def _is_asserted_of_request(lowered: str) -> bool:
    before, asserted, after = lowered.partition(_ASSERTED)
    words = before + after.partition("\n")[0]  # without the stack trace, which contains other names
    return bool(asserted) and _OF_THE_ENGINE.search(words) is None


def sanitize(text: str) -> tuple[str, bool]:
    """Replace what Postgres cannot store by U+FFFD. Returns the text, and True if it changed."""
    storable, num_replaced = _UNSTORABLE.subn("\ufffd", text)
    return storable, num_replaced > 0
