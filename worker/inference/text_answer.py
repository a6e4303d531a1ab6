"""Answers that are no token ids: text and finish reason of a model that produces text, or a vector."""

from collections.abc import Mapping, Sequence
from typing import Final

from jobs.answers.log_probs import Score
from jobs.checkpoints import Output
from jobs.embeddings import vectors
from jobs.errors import RetryableEngineError, UnsupportedParameterError
from jobs.live_output import OutputPiece
from jobs.prompts.thinking import ThinkingTags
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tools.harmony import HarmonySplitter
from jobs.prompts.tools.parser import CallParser
from jobs.states import FinishReason
from worker.engine.deltas import EngineDelta, TextDelta, VectorDelta
from worker.engine.storable import sanitize
from worker.inference.answer import Answer
from worker.inference.output_text import OutputText
from worker.inference.thinking import ThinkingSplitter

_REPLACEMENT: Final = "\ufffd"


class TextAnswer:
    """The text that a job has generated so far. Not thread-safe.

    Its tokens are those of its text according to the tokenizer: the real ones are known only to the server,
    which may report their number. So no other run can continue from it.

    Attributes:
        finish_reason: set once the answer ends by its own rules; later text is dropped.
    """

    is_resumable = False
    is_full = False  # only the engine ends it
    ids: Sequence[int] = ()

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._output = OutputText(stops)
        self._num_seen = 0  # characters of the text that is final
        self._matched = ""  # the stop string that ended it
        self._uncertain = ""  # the end of the text, which the next response may change
        self._num_counted = 0
        self._reported_tokens: int | None = None
        self._reported_reason: FinishReason | None = None
        self._has_begun = False
        self.finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the text so far; approximate while it grows, as each delta is counted alone."""
        return min(self._max_tokens, (not self._matched and self._reported_tokens) or self._num_counted)

    @property
    def is_streaming(self) -> bool:
        """True once this run has received text."""
        return self._has_begun

    @property
    def num_wanted(self) -> int:
        """Number of tokens that this run may generate."""
        return self._max_tokens

    @property
    def has_own_stops(self) -> bool:
        """True if only we may match its stop strings: they end neither thinking nor calls, kept apart."""
        return self._output.is_split and self._output.has_stops

    @property
    def ends_here(self) -> bool:
        """True if it may end by our own rules where no engine was told to."""
        return self.has_own_stops or self._output.ends_itself

    def split_thinking(self, tags: ThinkingTags, *, is_open: bool) -> None:
        """Keep thinking apart from the visible text; call it before the first delta.

        Without effect if the server leaves a tag out of its text: then nothing can be split.
        """
        if not tags.are_hidden:
            self._output.splitter = ThinkingSplitter(tags, is_open=is_open)

    def split_channels(self, splitter: HarmonySplitter, ids: Mapping[int, str], *, has_calls: bool) -> None:
        """Leave the answer as it is: a server leaves the tokens around its parts out of its text."""

    def find_calls(self, parser: CallParser, ids: Mapping[int, str]) -> None:  # noqa: ARG002
        """Tell calls from text; call it before the first delta."""
        self._output.find_calls(parser, is_single=parser.is_single)

    def begin_segment(self, *, until: int) -> None:  # noqa: ARG002  # reserved whole
        """Start a run, which always requests the whole answer."""
        self._has_begun = False

    def take_log_probs(self) -> None:
        """Return None: an engine that answers in text alone tells no scores."""

    def resume(self, ids: Sequence[int], scores: Sequence[Score] | None = None) -> None:
        """Ignore the tokens of an earlier run: this one starts over."""

    def take(self, delta: EngineDelta) -> None:
        """Append a delta of the stream, unless the answer has ended."""
        if not isinstance(delta, TextDelta) or self.finish_reason is not None:
            return
        self._has_begun = True
        self._reported_reason = delta.reason or self._reported_reason
        if delta.num_tokens is not None:
            self._reported_tokens = (self._reported_tokens or 0) + delta.num_tokens
        if not delta.is_whole:
            self._append(delta.text)
            return
        # An incomplete character looks like U+FFFD until its other bytes come.
        certain = delta.text.rstrip(_REPLACEMENT)
        self._uncertain = delta.text[max(len(certain), self._num_seen) :]
        self._append(certain[self._num_seen :])

    def finish(self) -> FinishReason:
        """End the answer because the engine did, and return why. At the token limit it is LENGTH."""
        self._accept_rest()
        if self.finish_reason is None:
            is_length = self._count() >= self._max_tokens
            by_count = FinishReason.LENGTH if is_length else FinishReason.STOP
            self.finish_reason = self._reported_reason or by_count
        return self.finish_reason

    def output(self) -> Output:
        """Return the final output in storable form, complete or cut off. Call it once."""
        self._accept_rest()
        self._output.flush()
        self._num_counted = self._count()
        return self.snapshot()

    def snapshot(self) -> Output:
        """Return the output that is final so far."""
        text, calls, replaced = self._output.visible()
        reasoning, reasoning_replaced = sanitize(self._output.raw_reasoning())
        return Output(
            text=text,
            ids=self._tokenizer.encode_text(text).tolist(),
            calls=calls,
            num_tokens=self.num_tokens,
            # The server's own replacement characters are lost bytes too.
            replaced=replaced or reasoning_replaced or _REPLACEMENT in reasoning + text,
            is_resumable=False,
            reasoning=reasoning,
            reasoning_tokens=min(self.num_tokens, self._count_reasoning()),
        )

    def take_new(self) -> OutputPiece:
        """Return the output that became final since the last call, in storable form."""
        return self._output.take()

    def _accept_rest(self) -> None:
        """Append the uncertain text, since nothing more comes."""
        rest, self._uncertain = self._uncertain, ""
        if self.finish_reason is None:
            self._append(rest)

    def _count(self) -> int:
        """Count the generated tokens: the server's number, or those of the text up to a stop string's end.

        An answer that the engine ended at `max_tokens` has that many, even if its text has fewer.
        """
        if self._reported_tokens is not None and not self._matched:
            return self._reported_tokens
        if self._reported_reason is FinishReason.LENGTH and not self._matched:
            return self._max_tokens
        return self._count_reasoning() + self._tokenizer.count_text(self._output.raw() + self._matched)

    def _count_reasoning(self) -> int:
        """Count the tokens of the thinking, with one for the tag that ends it."""
        splitter = self._output.splitter
        if splitter is None or not splitter.has_begun:
            return 0
        return self._tokenizer.count_text(self._output.raw_reasoning()) + splitter.has_ended

    def _append(self, text: str) -> None:
        if not text:
            return
        self._num_seen += len(text)
        self._num_counted += self._tokenizer.count_text(text)
        matched = self._output.add(text)
        if matched is not None:
            self._matched = matched
            self.finish_reason = FinishReason.STOP


class EmbeddingAnswer:
    """The vector of a job's input. It comes at once and whole, and no token is generated for it.

    Attributes:
        finish_reason: set once the vector is there.
    """

    is_resumable = False
    is_full = False
    is_streaming = False
    has_own_stops = False
    ends_here = False
    num_tokens = 0
    num_wanted = 1  # what is reserved beside the input
    ids: Sequence[int] = ()

    def __init__(self, *, dimensions: int | None = None) -> None:
        """Args: dimensions: of the vector; None: all that the model gives."""
        self._dimensions = dimensions
        self._packed: bytes | None = None
        self.finish_reason: FinishReason | None = None

    def split_thinking(self, tags: ThinkingTags, *, is_open: bool) -> None:
        """Do nothing, as there is no text; so do the methods below."""

    def split_channels(self, splitter: HarmonySplitter, ids: Mapping[int, str], *, has_calls: bool) -> None:
        """Do nothing."""

    def find_calls(self, parser: CallParser, ids: Mapping[int, str]) -> None:
        """Do nothing."""

    def begin_segment(self, *, until: int) -> None:
        """Do nothing."""

    def resume(self, ids: Sequence[int], scores: Sequence[Score] | None = None) -> None:
        """Do nothing."""

    def take_log_probs(self) -> None:
        """Return None: nothing is scored."""

    def take(self, delta: EngineDelta) -> None:
        """Take the vector, cut to the dimensions that were asked for.

        Raises:
            UnsupportedParameterError: the model gives fewer.
        """
        if not isinstance(delta, VectorDelta) or self._packed is not None:
            return
        num_given = vectors.num_dimensions(delta.packed)
        if self._dimensions is not None and self._dimensions > num_given:
            message = f"dimensions: the model's vectors have {num_given} numbers, not {self._dimensions}."
            raise UnsupportedParameterError(message, param="dimensions")
        is_whole = self._dimensions in (None, num_given)
        self._packed = delta.packed if is_whole else vectors.cut(delta.packed, self._dimensions or num_given)
        self.finish_reason = FinishReason.STOP

    def finish(self) -> FinishReason:
        """End the answer because the engine did.

        Raises:
            RetryableEngineError: the vector did not come.
        """
        if self.finish_reason is None:
            raise RetryableEngineError(said="the answer has no vector")
        return self.finish_reason

    def output(self) -> Output:
        """Return the final output."""
        return self.snapshot()

    def snapshot(self) -> Output:
        """Return the output so far."""
        return Output(text="", ids=(), num_tokens=0, is_resumable=False, embedding=self._packed)

    def take_new(self) -> OutputPiece:
        """Return nothing: a vector is not streamed."""
        return OutputPiece("", "")


AnyAnswer = Answer | TextAnswer | EmbeddingAnswer
