"""The deltas of an engine's stream: token ids or text."""

from dataclasses import dataclass

from jobs.states import FinishReason


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """The token ids that the engine generated."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The text of one response.

    Attributes:
        text: the new text; with `is_whole` the whole text so far, the end of which may still change.
        num_tokens: tokens generated for it; None if the server does not report them.
        is_whole: see `text`.
        reason: why the answer ended; None if it continues or the server does not report it.
        given_up: the engine's word for giving the answer up, unasked a failure; None if it did not.
    """

    text: str
    num_tokens: int | None = None
    is_whole: bool = False
    reason: FinishReason | None = None
    given_up: str | None = None


EngineDelta = TokenDelta | TextDelta
