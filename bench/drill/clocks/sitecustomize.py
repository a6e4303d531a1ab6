# ruff: noqa: INP001  # no package: Python loads it by its name, from a folder in PYTHONPATH
"""Loaded by every Python program whose clock is wrong: lets it sleep.

Python sleeps until a moment of the monotonic clock; libfaketime 0.9.10, told to leave that alone, refuses.
"""

import select
import time


def _sleep(seconds: float) -> None:
    """Sleep for so many seconds, by a call that takes a span."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = _sleep  # type: ignore[assignment]  # no integer of another kind sleeps here
