"""What a one-token request to an engine shows an operator."""

import time

from jobs.diagnostics import Finding
from jobs.errors import EngineUnavailableError
from worker.engine.client import CANARY_SECONDS, EngineClient
from worker.engine.engine import ServedModel


def answers(client: EngineClient, served: ServedModel) -> Finding:
    """Find out whether the engine generates a token, although the server may be ready."""
    began = time.monotonic()
    error = client.try_answer(served, timeout=CANARY_SECONDS)
    if error is None:
        return Finding("answer", "ok", f"one token came within {time.monotonic() - began:.2f} s")
    detail = f"{error.message}: {error.said}" if error.said not in ("", error.message) else error.message
    advice = "see the server's log; other requests may occupy the engine"
    is_late = isinstance(error, EngineUnavailableError)
    return Finding("answer", "failed", detail, advice, facts={"is_late": is_late})
