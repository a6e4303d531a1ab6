"""A job's queue position in words."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from longbatch.backports import UTC, moment_of
from longbatch.waiting import WAIT_WORDS

_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)


def in_words(queue: Mapping[str, Any], *, now: datetime) -> str:
    """Describe a queue position: `number 3, starts in about 4 min: others go first`."""
    reason = queue["reason"]
    why = "starts any moment" if reason is None else queue.get("detail") or WAIT_WORDS.get(reason, reason)
    known = []
    if queue["position"] is not None:
        known.append(f"number {queue['position']:,}")
    if reason is not None and queue["estimated_start_at"] is not None:
        left = moment_of(queue["estimated_start_at"]) - now
        known.append(f"starts in about {_span(left)}")
    return f"{', '.join(known)}: {why}" if known else why


def utc_now() -> datetime:
    """Return the time by this machine's clock."""
    return datetime.now(UTC)


def _span(left: timedelta) -> str:
    """Format a duration, no more exact than an estimate deserves."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if left >= 2 * unit:
            return f"{left / unit:.0f} {name}"
    return f"{max(1, round(left.total_seconds()))} s"
