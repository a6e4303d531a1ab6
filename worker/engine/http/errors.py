"""The translation of an HTTP server's errors to ours."""

from typing import Any, Final

import httpx2

from jobs.errors import EngineError, EngineLostError, EngineUnavailableError, RetryableEngineError
from worker.engine.engine import NOT_SENT, StreamEnd
from worker.engine.storable import storable

# The request itself is wrong; the same request fails again.
_REFUSED: Final = frozenset({400, 413, 415, 422})
# The server accepted nothing, and another moment or operator helps: a wrong key, no such model, too busy.
_NOT_NOW: Final = frozenset({401, 403, 404, 408, 429, 503})


def refused(answer: httpx2.Response, *, is_certain: bool) -> StreamEnd:
    """Translate an answer that is no success.

    Args:
        answer: read to its end.
        is_certain: the kind sends 400 for wrong requests alone.
    """
    said, status = said_by(answer), answer.status_code
    if status in _REFUSED:
        error = EngineError(said, said=said) if is_certain else RetryableEngineError(said=said)
        return StreamEnd(error, confirmed=True)
    if status in _NOT_NOW:
        return StreamEnd(EngineUnavailableError(said=said), confirmed=True)
    return StreamEnd(RetryableEngineError(said=said), confirmed=False)


def broken(error: Exception, *, was_sent: bool) -> StreamEnd:
    """Translate a connection that broke."""
    if not was_sent:
        return NOT_SENT
    return StreamEnd(EngineLostError(said=storable(f"{type(error).__name__}: {error}")), confirmed=False)


def said_by(answer: httpx2.Response) -> str:
    """Return what the server said, in storable form."""
    try:
        return storable(message_of(answer.json()) or answer.text)
    except ValueError:
        return storable(answer.text or answer.reason_phrase)


def message_of(body: Any) -> str:  # noqa: ANN401  # JSON of a foreign server
    """Read the message of an error body; empty if it has none.

    Servers write `{"error": {"message": …}}`, `{"error": "…"}`, `{"message": …}` or `{"detail": …}`.
    """
    found = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or ""
    return found if isinstance(found, str) else str(found)
