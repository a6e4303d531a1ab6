"""The split of an answer into thinking and visible text, whatever pieces its text comes in."""

from enum import Enum, auto

from jobs.live_output import OutputPiece
from jobs.prompts.thinking import ThinkingTags

_LINE_ENDS = "\r\n"


class _Place(Enum):
    """Where the text has got to."""

    START = auto()  # nothing but white space, or a part of the opening tag
    OPENED = auto()  # the same, after a prompt that opened thinking: some models write the tag again
    THINKING = auto()
    ENDED = auto()  # only line ends since the closing tag
    VISIBLE = auto()


class ThinkingSplitter:
    """A filter that splits text into thinking and visible text. Not thread-safe.

    A model thinks once, at the beginning. The tags, and line ends next to them, belong to neither part. What
    the parts hold in the end depends on the whole text alone: text is held back only while it can still
    become a tag, or line ends before one.
    """

    def __init__(self, tags: ThinkingTags, *, is_open: bool) -> None:
        """Args: is_open: the prompt has opened thinking already."""
        self._tags = tags
        self._place = _Place.OPENED if is_open else _Place.START
        self._held = ""
        self._has_thought = False

    @property
    def has_begun(self) -> bool:
        """True once the answer certainly thinks, or has thought."""
        return self._place in (_Place.OPENED, _Place.THINKING) or self.has_ended

    @property
    def has_ended(self) -> bool:
        """True once all further text is visible, and some text was not."""
        return self._place is _Place.ENDED or (self._place is _Place.VISIBLE and self._has_thought)

    @property
    def is_visible(self) -> bool:
        """True once all further text is visible."""
        return self._place is _Place.VISIBLE

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def push(self, text: str) -> OutputPiece:
        """Return the thinking and the visible text that are now certain."""
        self._held += text
        thought = ""
        while True:
            place = self._place
            match place:
                case _Place.START | _Place.OPENED:
                    self._open()
                case _Place.THINKING:
                    thought += self._think()
                case _Place.ENDED:
                    self._held = self._held.lstrip(_LINE_ENDS)
                    self._place = _Place.VISIBLE if self._held else place
                case _Place.VISIBLE:
                    visible, self._held = self._held, ""
                    return OutputPiece(thought, visible)
            if self._place is place:
                return OutputPiece(thought, "")

    def flush(self) -> OutputPiece:
        """Return what was held back, since nothing more comes."""
        rest, self._held = self._held, ""
        if self._place in (_Place.OPENED, _Place.THINKING):
            rest = rest if self._has_thought else rest.lstrip(_LINE_ENDS)
            return OutputPiece(rest.rstrip(_LINE_ENDS), "")
        return OutputPiece("", rest)

    def _open(self) -> None:
        """Leave the start as soon as it is certain whether the opening tag stands there."""
        begun = self._held.lstrip()
        if begun.startswith(self._tags.begin):
            self._held = begun[len(self._tags.begin) :]
            self._place = _Place.THINKING
        elif not self._tags.begin.startswith(begun):
            self._place = _Place.THINKING if self._place is _Place.OPENED else _Place.VISIBLE

    def _think(self) -> str:
        """Return the thinking that is certain, and leave it at the closing tag."""
        if not self._has_thought:
            self._held = self._held.lstrip(_LINE_ENDS)
        thought, end, after = self._held.partition(self._tags.end)
        if end:
            self._held, self._place, self._has_thought = after, _Place.ENDED, True
            return thought.rstrip(_LINE_ENDS)
        certain = self._held[: len(self._held) - self._num_held()].rstrip(_LINE_ENDS)
        self._held = self._held[len(certain) :]
        self._has_thought = self._has_thought or bool(certain)
        return certain

    def _num_held(self) -> int:
        """Return the length of the longest end of the text that begins the closing tag."""
        end = self._tags.end
        longest = min(len(end) - 1, len(self._held))
        return next((num for num in range(longest, 0, -1) if self._held.endswith(end[:num])), 0)
