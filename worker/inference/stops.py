"""Stop strings found in text that comes in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through until the first stop string is complete; the result does not depend on the pieces.

    The match is the one that ends first, and of those the one that begins first: what a reader stops at who
    looks at every character as it comes. Text is held back only while it can still become a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string has at least one character")
        self._stops = tuple(stops)
        self._max_held = max(map(len, stops), default=1) - 1
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is now final, and the stop string that ended it, if one did.

        After a match everything is dropped: the answer ends before the stop string.
        """
        if self.matched is not None:
            return "", self.matched
        window = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := window.find(stop)) >= 0]
        if found:
            end, begin = min(found)
            self.matched = window[begin:end]
            self._held = ""
            return window[:begin], self.matched
        keep = self._num_held(window)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep], None

    def flush(self) -> str:
        """The text that was held back, once no more comes."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, window: str) -> int:
        """Length of the longest end of the window with which a stop string begins."""
        for length in range(min(self._max_held, len(window)), 0, -1):
            tail = window[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
