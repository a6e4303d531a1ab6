"""Matching stop strings in streamed text."""

from collections.abc import Sequence


class StopMatcher:
    """A filter that passes text until the first stop string is complete, however the text is split.

    The match is the one that ends first and, among those, begins first: where a reader checking every
    character as it arrives would stop. Text is held back only while it can still become a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string has at least one character")
        self._stops = tuple(stops)
        self._max_held = max(map(len, stops), default=1) - 1
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Return the text that is now final, and the stop string that ended it or None.

        After a match all further text is dropped: the answer ends before the stop string.
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
        """Return the held-back text, once no more comes."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, window: str) -> int:
        """Return the length of the longest end of the window that begins a stop string."""
        for length in range(min(self._max_held, len(window)), 0, -1):
            tail = window[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
