"""Queue positions and durations in words."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from longbatch.backports import UTC, moment_of
from longbatch.waiting import WAIT_WORDS

_MINUTE: Final = 60.0  # seconds, as below
_DAY: Final = 86_400.0


def in_words(queue: Mapping[str, Any], *, now: datetime) -> str:
    """Describe a queue position: `number 3, starts in about 4 min: others go first`."""
    reason = queue["reason"]
    why = "starts any moment" if reason is None else queue.get("detail") or WAIT_WORDS.get(reason, reason)
    known = []
    if queue["position"] is not None:
        known.append(f"number {queue['position']:,}")
    if reason is not None and queue["estimated_start_at"] is not None:
        left = moment_of(queue["estimated_start_at"]) - now
        known.append(f"starts in {about(left.total_seconds())}")
    return f"{', '.join(known)}: {why}" if known else why


def utc_now() -> datetime:
    """Return the time by this machine's clock."""
    return datetime.now(UTC)


def about(seconds: float) -> str:
    """Format an estimate of a duration, no more exact than it deserves: `about 1 h 27 min`."""
    if seconds < 2 * _MINUTE:
        return f"about {max(1, round(seconds))} s"
    if seconds >= 2 * _DAY:
        return f"about {seconds / _DAY:.0f} d"
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes)
    return f"about {' '.join(parts)}"
