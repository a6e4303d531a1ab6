"""The text of an answer that is final so far: its thinking and calls apart, the rest up to a stop string."""

from collections.abc import Sequence

from jobs.live_output import OutputPiece
from jobs.prompts.tools import frames
from jobs.prompts.tools.calls import MadeCall
from jobs.prompts.tools.frames import CallPart, FrameReader
from jobs.prompts.tools.harmony import HarmonySplitter
from jobs.prompts.tools.parser import CallParser
from worker.engine.storable import sanitize
from worker.inference.thinking import ThinkingSplitter


class OutputText:
    """Text that grows until a stop string ends it. Not thread-safe.

    Stop strings end visible text alone: a model that mentions one while it thinks goes on.

    Attributes:
        splitter: takes the thinking out; None: all text is visible.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.splitter: ThinkingSplitter | HarmonySplitter | None = None
        self._parser: CallParser | None = None
        self._frames: FrameReader | None = None
        self._is_in_call = False
        self._is_single = False
        self._stops = StopMatcher(stops) if stops else None
        self._thoughts: list[str] = []
        self._deltas: list[str] = []
        self._num_taken = (0, 0)

    @property
    def is_split(self) -> bool:
        """True if parts of it are not text, which no stop string ends."""
        return self.splitter is not None or self._frames is not None

    @property
    def ends_itself(self) -> bool:
        """True if it ends after its only call."""
        return self._is_single

    @property
    def has_stops(self) -> bool:
        """True if a stop string may end the text."""
        return self._stops is not None

    def add(self, text: str) -> str | None:
        """Append text. Returns the stop string that ended it, which is not part of it, or None."""
        return self._append(self.splitter.push(text) if self.splitter else OutputPiece("", text))

    def flush(self) -> None:
        """Append the text held back for a tag or a stop string, since nothing more comes."""
        if self.splitter is not None:
            self._append(self.splitter.flush())
        if self._parser is not None:
            self._add_framed(self._parser.flush())
        if self._stops is not None:
            self._deltas.append(self._stops.flush())

    @property
    def num_withheld(self) -> int:
        """Characters at the end that are not part of the text, or not yet."""
        held = self.splitter.num_held if self.splitter else 0
        held += self._parser.num_held if self._parser else 0
        return held + (self._stops.num_withheld if self._stops else 0)

    def raw(self) -> str:
        """Return the whole visible text, unsanitized, with calls framed."""
        return "".join(self._deltas)

    def visible(self) -> tuple[str, tuple[MadeCall, ...], bool]:
        """Return the visible text and the calls in storable form, and whether anything was replaced."""
        whole, replaced = sanitize(self.raw())
        text, calls = (whole, ()) if self._frames is None else frames.unframed(whole)
        return text, calls, replaced

    def raw_reasoning(self) -> str:
        """Return the whole thinking, unsanitized."""
        return "".join(self._thoughts)

    def take(self) -> OutputPiece:
        """Return what was added since the last call, in storable form."""
        num_thoughts, num_deltas = self._num_taken
        thoughts, deltas = self._thoughts[num_thoughts:], self._deltas[num_deltas:]
        self._num_taken = len(self._thoughts), len(self._deltas)
        return OutputPiece(sanitize("".join(thoughts))[0], sanitize("".join(deltas))[0])

    def find_calls(self, parser: CallParser | None, *, is_single: bool) -> None:
        """Tell calls from text from now on.

        Args:
            parser: does so; None: the splitter does.
            is_single: the answer ends after its first call.
        """
        self._parser, self._frames, self._is_single = parser, FrameReader(), is_single

    def _append(self, piece: OutputPiece) -> str | None:
        if piece.reasoning:
            self._thoughts.append(piece.reasoning)
        if self._frames is None:
            return self._add_text(piece.text)
        matched = self._add_framed(self._parser.push(piece.text) if self._parser else piece.text)
        return "" if matched is None and self._is_single and self._has_ended() else matched

    def _has_ended(self) -> bool:
        """Return True if the only call is over."""
        if self._parser is not None:
            return self._parser.has_ended
        return isinstance(self.splitter, HarmonySplitter) and self.splitter.is_over

    def _add_framed(self, framed: str) -> str | None:
        """Append text with calls in frames. A stop string ends text alone, and is no part of a call."""
        for part in self._frames.push(framed) if self._frames else ():
            if self._stops is not None and self._stops.matched is not None:
                break
            if isinstance(part, CallPart):
                held = self._stops.flush() if self._stops else ""
                self._deltas += [held, part.framed()]
                self._is_in_call = True
                continue
            if self._is_in_call:
                self._deltas.append(frames.TEXT)
                self._is_in_call = False
            if (matched := self._add_text(part.text)) is not None:
                return matched
        return None

    def _add_text(self, text: str) -> str | None:
        if self._stops is None:
            self._deltas.append(text)
            return None
        passed, matched = self._stops.push(text)
        self._deltas.append(passed)
        return matched


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
        self._num_dropped = 0

    @property
    def num_withheld(self) -> int:
        """Characters at the end that it held back or, after a match, dropped."""
        return len(self._held) or self._num_dropped

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
            self._held, self._num_dropped = "", len(window) - begin
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
