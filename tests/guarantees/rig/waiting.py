"""Waiting for what must happen, without asserting how long it takes."""

import os
import time
from collections.abc import Callable
from typing import Final, Literal, TypeVar

T = TypeVar("T")
# Bounds a hang and promises nothing: a machine at work takes many times as long as an idle one.
PATIENCE: Final = float(os.environ.get("GUARANTEES_PATIENCE", "90"))
# Of a process that starts.
START_PATIENCE: Final = 120.0


def eventually(
    look: Callable[[], T | Literal[False] | None], *, what: str = "", timeout: float = PATIENCE
) -> T:
    """Wait for the first truthy answer of `look`."""
    began, answer = time.monotonic(), None
    while time.monotonic() - began < timeout:
        if answer := look():
            return answer
        waited = time.monotonic() - began
        time.sleep(max(0.02, min(waited / 10, 0.2)))
    raise AssertionError(f"waited {timeout} s in vain{': ' if what else ''}{what}; last answer: {answer!r}")
