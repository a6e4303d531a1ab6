"""One answer of a model that says text: pieces in, text out, and the reason why it ends."""

from collections.abc import Sequence
from typing import Final

from jobs.checkpoints import Output
from jobs.prompts.tokenizer import Tokenizer, pack_ids
from jobs.states import FinishReason
from worker.engine.deltas import Piece, Text
from worker.engine.verdicts import sanitize
from worker.inference.output_text import Said

_REPLACEMENT: Final = "\ufffd"


class TextAnswer:
    """What a job has been answered so far; not for several threads.

    Its tokens are those of its text, by the tokenizer: what the model really generated is known to no one
    outside the server, unless that tells how many there were. So no other run can go on from it.

    Attributes:
        finish_reason: set once the answer has ended by its own rules; what comes later is dropped.
    """

    is_resumable = False
    is_full = False  # nothing but the engine's word ends it
    ids: Sequence[int] = ()

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._said = Said(stops)
        self._num_seen = 0  # characters of all that is certain
        self._matched = ""  # the stop string that ended it
        self._uncertain = ""  # the end of it, which the next response may change
        self._num_counted = 0
        self._told_tokens: int | None = None
        self._told_reason: FinishReason | None = None
        self._has_begun = False
        self.finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the text so far; while it grows they are counted piece by piece, so about."""
        return min(self._max_tokens, (not self._matched and self._told_tokens) or self._num_counted)

    @property
    def is_streaming(self) -> bool:
        """Whether anything has come."""
        return self._has_begun

    @property
    def num_wanted(self) -> int:
        """Tokens that this run may generate."""
        return self._max_tokens

    def begin_run(self, *, until: int) -> None:  # noqa: ARG002  # booked whole
        """The engine is asked for all."""
        self._has_begun = False

    def resume(self, ids: Sequence[int]) -> None:
        """The answer begins anew: what another run left is no beginning for this one."""

    def take(self, piece: Piece) -> None:
        """What the engine said belongs to the answer, as far as it has not ended."""
        if not isinstance(piece, Text) or self.finish_reason is not None:
            return
        self._has_begun = True
        self._told_reason = piece.reason or self._told_reason
        if piece.num_tokens is not None:
            self._told_tokens = (self._told_tokens or 0) + piece.num_tokens
        if not piece.is_whole:
            self._say(piece.text)
            return
        # A character that lacks bytes looks like U+FFFD until they come.
        certain = piece.text.rstrip(_REPLACEMENT)
        self._uncertain = piece.text[max(len(certain), self._num_seen) :]
        self._say(certain[self._num_seen :])

    def finish(self) -> FinishReason:
        """The engine has ended the answer; why. As many tokens as were allowed mean a length."""
        self._settle()
        if self.finish_reason is None:
            is_length = self._count() >= self._max_tokens
            by_count = FinishReason.LENGTH if is_length else FinishReason.STOP
            self.finish_reason = self._told_reason or by_count
        return self.finish_reason

    def output(self) -> Output:
        """What there is, as it can be stored, also of an answer that was cut off; call it once."""
        self._settle()
        self._said.flush()
        self._num_counted = self._count()
        return self.snapshot()

    def snapshot(self) -> Output:
        """What there is for certain."""
        text, replaced = sanitize(self._said.raw())
        return Output(
            text=text,
            packed_ids=pack_ids(self._tokenizer.encode_text(text)),
            num_tokens=self.num_tokens,
            # The server's own replacement characters are lost bytes too.
            replaced=replaced or _REPLACEMENT in text,
            is_resumable=False,
        )

    def take_text(self) -> str:
        """The text that became certain since it was last taken, as it can be stored."""
        return self._said.take()

    def _settle(self) -> None:
        """What was uncertain is certain: nothing more comes."""
        rest, self._uncertain = self._uncertain, ""
        if self.finish_reason is None:
            self._say(rest)

    def _count(self) -> int:
        """Generated tokens: as the server told, else those of the text; only up to a stop string's end."""
        if self._told_tokens is not None and not self._matched:
            return self._told_tokens
        return self._tokenizer.count_text(self._said.raw() + self._matched)

    def _say(self, text: str) -> None:
        if not text:
            return
        self._num_seen += len(text)
        self._num_counted += self._tokenizer.count_text(text)
        matched = self._said.add(text)
        if matched is not None:
            self._matched = matched
            self.finish_reason = FinishReason.STOP
