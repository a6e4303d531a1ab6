"""The finish reasons of OpenAI-compatible servers, and what each means for a job."""

from collections.abc import Mapping
from typing import Final

from jobs.errors import EngineError, RetryableEngineError
from jobs.states import FinishReason
from worker.engine.storable import storable

# vLLM ends an answer with `repetition` if its own settings look for endless repetition: to the caller a stop.
WHOLE: Final[Mapping[str, FinishReason]] = {
    "stop": FinishReason.STOP,
    "repetition": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}
# The engine gave the answer up, not because of the request: vLLM's, TensorRT-LLM's and gateways' words.
_GIVEN_UP: Final = frozenset({"abort", "error", "cancelled", "timeout"})


def error_of(reason: str) -> EngineError | None:
    """Return why an answer with this finish reason failed; None if it is whole.

    A reason that is unknown here, such as `content_filter`, follows from the request: another attempt would
    end in the same way.
    """
    if reason in WHOLE:
        return None
    if reason in _GIVEN_UP:
        return RetryableEngineError(said=f"finish_reason {reason}")
    named = storable(reason)
    return EngineError(f"the engine ended the answer with the finish reason {named!r}", said=named)
