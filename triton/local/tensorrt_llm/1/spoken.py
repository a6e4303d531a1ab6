"""A request of the stand-in, whose answer is computed in advance."""

from concurrent.futures import Future
from dataclasses import dataclass

from .requests import Request
from .speech import Speech


@dataclass(eq=False, kw_only=True)
class Spoken(Request):
    """A request and its answer.

    Attributes:
        speech: its answer, once computed.
        wakes_at: monotonic time at which a silence ends; None while not silent.
        rested_at: index of the token before which the last silence was.
    """

    speech: "Future[Speech]"
    wakes_at: float | None = None
    rested_at: int = -1
