"""Where a window of text may begin inside a run of blanks and line ends; see `text_windows`."""

import re
from typing import Final

MARGIN: Final = 4  # characters of the same kind required before a window that begins inside a pre-token

_CHARACTERS: Final = " \t\r\n"
_BLANKS: Final = re.compile(f"[{_CHARACTERS}]+")
_LINE_ENDS: Final = re.compile(r"[\r\n]+")


class BlankRuns:
    """The runs of blanks and line ends in a text, each measured once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._start = self._end = 0  # of the run measured last
        self._last = -1

    def hold(self, start: int, low: int, high: int, end: int) -> bool:
        """Return True if a stretch is blank and, after its margin, inside one pre-token.

        A run of blanks and line ends is one pre-token up to its last line end and one after it, whose last
        blank may go to what follows. Line ends right after marks belong to the marks. A window sees the same
        if it ends after a line end of the run, or contains none.

        Args:
            start: where the window begins.
            low: where the stretch begins.
            high: where the stretch ends.
            end: where the window ends.
        """
        text = self._text
        if not _BLANKS.fullmatch(text, low, high):
            return False
        run_end, last = self._measure(high - 1)
        if run_end < len(text) and text[run_end].isspace():
            return False
        if last < high:
            return run_end > high + 1 and not _LINE_ENDS.search(text, low, high)
        if _LINE_ENDS.fullmatch(text, low, min(last + 1, end)):
            return True
        before = text[start : low + MARGIN]
        if _LINE_ENDS.search(text, high, min(end, run_end)):
            return any(blank in before[len(before.rstrip(_CHARACTERS)) :] for blank in " \t")
        return not _LINE_ENDS.search(text, start + len(before.rstrip()), high)

    def _measure(self, place: int) -> tuple[int, int]:
        """Return the run's end and its last line end; one before `place` means none from there on."""
        if not self._start <= place < self._end:
            blanks = _BLANKS.match(self._text, place)
            self._start, self._end = place, blanks.end() if blanks else place + 1
            self._last = max(self._text.rfind(each, place, self._end) for each in "\r\n")
        return self._end, self._last
