"""Equal requests of a tenant run once: the first is the leader, the others are its twins."""

from dataclasses import dataclass
from datetime import timedelta

from jobs.validation import CachePolicy


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a job may share the run of an equal one.

    Attributes:
        max_age: it takes a result that is not older; None: it takes those of unfinished jobs alone.
    """

    max_age: timedelta | None = None


def sharing_of(share_equal: bool | None, cache: CachePolicy | None, *, default: bool) -> Sharing | None:  # noqa: FBT001  # what a request says
    """Tell how a request may share a run, from what it says.

    Returns:
        None if it runs by itself.
    """
    if share_equal is None:
        share_equal = default or cache is not None
    if not share_equal:
        return None
    return Sharing(timedelta(seconds=cache.max_age_seconds) if cache else None)
