"""The translation of an HTTP server's errors to ours."""

import json
import re
from http import HTTPStatus
from typing import Any, Final

from jobs.errors import (
    EngineBusyError,
    EngineError,
    EngineForbidsError,
    EngineLostError,
    EngineMisconfiguredError,
    RetryableEngineError,
)
from worker.engine.engine import NOT_SENT, StreamEnd
from worker.engine.sessions import is_redirect, reason_of
from worker.engine.storable import storable

# The request itself is wrong; the same request fails again.
_REFUSED: Final = frozenset({400, 413, 415, 422})
# The server accepted nothing: another key or address helps, or another moment; where a gateway limits single
# requests, nothing does.
_FORBIDDEN: Final = 403  # for every prompt or, by a filter in front of the server, for this one
_NO_KEY: Final = frozenset({401, _FORBIDDEN})
_NOT_HERE: Final = frozenset({404, 405})
_NOT_NOW: Final = frozenset({408, 429, 503})
# llama.cpp's word, with status 500, for an input to embed that is longer than its batch.
_TOO_LARGE: Final = "too large to process"
# How servers say that a prompt does not fit: "maximum context length", "exceeds the available context size",
# "prompt is too long", "too many tokens".
_TOO_LONG: Final = re.compile(r"context|too long|too many|exceed", re.IGNORECASE)
_ESTIMATED: Final = (
    "The engine counts more tokens than estimated: name the model's tokenizer with --engine-tokenizer DIR"
    " (LONGBATCH_TOKENIZER__PATH), or lower LONGBATCH_ENGINE__MAX_SEQ_LEN"
)


def in_stream(status: object, said: str, *, is_certain: bool, is_estimated: bool = False) -> EngineError:
    """Translate an error that a stream reports under the status of success.

    Args:
        status: the status that the server would have answered with; of any type.
        said: the server's message, in storable form.
        is_certain: the kind sends 400 for wrong requests alone, and none of the answer has come.
        is_estimated: the prompt was counted by an estimate.
    """
    if status in _REFUSED:
        return _refusal(said, is_certain=is_certain, is_estimated=is_estimated)
    if status in _NOT_NOW and is_certain:
        return _busy(status, said)
    return RetryableEngineError(said=said)


def refused(status: int, said: str, *, is_certain: bool, is_estimated: bool = False) -> StreamEnd:
    """Translate an answer that is no success.

    Args:
        status: of the answer.
        said: the server's message, in storable form.
        is_certain: the kind sends 400 for wrong requests alone.
        is_estimated: the prompt was counted by an estimate.
    """
    if status in _REFUSED or (status == HTTPStatus.INTERNAL_SERVER_ERROR and _TOO_LARGE in said):
        error = _refusal(said, is_certain=is_certain, is_estimated=is_estimated)
        return StreamEnd(error, confirmed=True)
    if status in _NO_KEY | _NOT_HERE or is_redirect(status):
        help_ = "; see LONGBATCH_ENGINE__API_KEY" if status in _NO_KEY else ""
        message = f"the engine answers every request with status {status}{help_}"
        kind = EngineForbidsError if status == _FORBIDDEN else EngineMisconfiguredError
        return StreamEnd(kind(message, said=said), confirmed=True)
    if status in _NOT_NOW:
        return StreamEnd(_busy(status, said), confirmed=True)
    return StreamEnd(RetryableEngineError(said=said), confirmed=False)


def _refusal(said: str, *, is_certain: bool, is_estimated: bool) -> EngineError:
    if is_estimated and _TOO_LONG.search(said):
        return EngineError(f"{said.rstrip('.')}. {_ESTIMATED}", said=said)
    return EngineError(said, said=said) if is_certain else RetryableEngineError(said=said)


def _busy(status: object, said: str) -> EngineBusyError:
    return EngineBusyError(f"the engine puts requests off with status {status}", said=said)


def broken(error: Exception, *, was_sent: bool) -> StreamEnd:
    """Translate a connection that broke."""
    if not was_sent:
        return NOT_SENT
    return StreamEnd(EngineLostError(said=storable(reason_of(error))), confirmed=False)


def said_by(body: bytes, *, reason: str, redirect: str | None) -> str:
    """Return what the server said, in storable form.

    Args:
        body: its beginning.
        reason: the phrase of the status line.
        redirect: where the answer redirects to; None: nowhere.
    """
    if redirect is not None:
        return storable(f"it redirects to {redirect}")
    text = body.decode(errors="replace")
    try:
        return storable(message_of(json.loads(text)) or text)
    except (ValueError, RecursionError):
        return storable(text or reason)


def message_of(body: Any) -> str:  # noqa: ANN401  # JSON of a foreign server
    """Read the message of an error body; empty if it has none.

    Servers write `{"error": {"message": …}}`, `{"error": "…"}`, `{"message": …}` or `{"detail": …}`. Details
    of FastAPI also quote the input, which is the prompt: only their messages are read.
    """
    found = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or ""
    if isinstance(found, list):
        found = "; ".join(_detail(each) for each in found if isinstance(each, dict))
    return found if isinstance(found, str) else str(found)


def _detail(found: dict[str, Any]) -> str:
    where = found.get("loc")
    path = ".".join(str(each) for each in where) if isinstance(where, list) else ""
    return f"{path}: {found.get('msg') or ''}"
