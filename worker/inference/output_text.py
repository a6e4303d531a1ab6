"""The text of an answer that is final so far."""

from collections.abc import Sequence

from worker.engine.verdicts import sanitize
from worker.inference.stops import StopMatcher


class OutputText:
    """Text that grows until a stop string ends it. Not thread-safe."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = StopMatcher(stops) if stops else None
        self._deltas: list[str] = []
        self._num_taken = 0

    def add(self, text: str) -> str | None:
        """Append text. Returns the stop string that ended it, which is not part of it, or None."""
        if self._stops is None:
            self._deltas.append(text)
            return None
        passed, matched = self._stops.push(text)
        self._deltas.append(passed)
        return matched

    def flush(self) -> None:
        """Append the text held back for a stop string, since nothing more comes."""
        if self._stops is not None:
            self._deltas.append(self._stops.flush())

    def raw(self) -> str:
        """Return the whole text, unsanitized."""
        return "".join(self._deltas)

    def take(self) -> str:
        """Return the text added since the last call, in storable form."""
        new, self._num_taken = self._deltas[self._num_taken :], len(self._deltas)
        return sanitize("".join(new))[0]
