"""A request of the stand-in: what it says is known before it is said."""

from concurrent.futures import Future
from dataclasses import dataclass

from .requests import Request
from .speech import Speech


@dataclass(eq=False, kw_only=True)
class Spoken(Request):
    """A request and its words.

    Attributes:
        speech: what it says, once that is worked out.
        wakes_at: monotonic time at which a silence ends, None when not silent.
        rested_at: the index before which the last silence was.
    """

    speech: "Future[Speech]"
    wakes_at: float | None = None
    rested_at: int = -1
