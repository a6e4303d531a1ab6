"""What an engine says on a stream: token ids or text."""

from dataclasses import dataclass

from jobs.states import FinishReason


@dataclass(frozen=True, slots=True)
class Tokens:
    """The engine generated these."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class Text:
    """The server said this.

    Attributes:
        text: what is new; with `is_whole` all that was said so far, the end of which may still change.
        num_tokens: that were generated for it; None: the server does not tell.
        is_whole: see `text`.
        reason: why the answer has ended; None: it goes on, or the server does not tell.
    """

    text: str
    num_tokens: int | None = None
    is_whole: bool = False
    reason: FinishReason | None = None


Piece = Tokens | Text
