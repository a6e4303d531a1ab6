"""The text of an answer as far as it is certain."""

from collections.abc import Sequence

from worker.engine.verdicts import sanitize
from worker.inference.stops import StopMatcher


class Said:
    """Text that grows until a stop string ends it; not for several threads."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = StopMatcher(stops) if stops else None
        self._pieces: list[str] = []
        self._num_taken = 0

    def add(self, text: str) -> str | None:
        """The text goes on; the stop string that ended it, which is no part of it."""
        if self._stops is None:
            self._pieces.append(text)
            return None
        passed, matched = self._stops.push(text)
        self._pieces.append(passed)
        return matched

    def flush(self) -> None:
        """What could have become a stop string is text, as nothing more comes."""
        if self._stops is not None:
            self._pieces.append(self._stops.flush())

    def raw(self) -> str:
        """All of it, as it came."""
        return "".join(self._pieces)

    def take(self) -> str:
        """What came since this was last asked, as it can be stored."""
        new, self._num_taken = self._pieces[self._num_taken :], len(self._pieces)
        return sanitize("".join(new))[0]
