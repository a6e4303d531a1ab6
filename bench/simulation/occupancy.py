"""How full an engine was over time: data for a plot of slots and blocks, and averages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Moment:
    """The engine's occupancy from this time until the next moment.

    Attributes:
        at_s: seconds since the start.
        slots: active requests.
        booked_blocks: KV blocks reserved by them.
        used_tokens: in the cache at this time; it grows until the next moment.
    """

    at_s: float
    slots: int
    booked_blocks: int
    used_tokens: int


def columns(moments: Sequence[Moment]) -> dict[str, list[float]]:
    """Return one list per quantity, the steps of a plot: each time's last moment."""
    last = {each.at_s: each for each in moments}.values()
    return {
        "at_s": [round(each.at_s, 3) for each in last],
        "slots": [each.slots for each in last],
        "booked_blocks": [each.booked_blocks for each in last],
        "used_tokens": [each.used_tokens for each in last],
    }


def average(moments: Sequence[Moment], quantity: Callable[[Moment], float]) -> float:
    """Average the quantity over time, from the first moment to the last."""
    total = sum((after.at_s - before.at_s) * quantity(before) for before, after in pairwise(moments))
    return total / (moments[-1].at_s - moments[0].at_s)
