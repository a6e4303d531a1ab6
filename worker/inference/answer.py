"""One answer as it grows: token ids in, text and finish reason out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jobs.answers.log_probs import Score, ScoredTokens
from jobs.checkpoints import Output
from jobs.live_output import OutputPiece
from jobs.prompts.thinking import ThinkingTags
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tools.harmony import HarmonySplitter
from jobs.prompts.tools.parser import CallParser
from jobs.states import FinishReason
from worker.engine.deltas import EngineDelta, TokenDelta
from worker.engine.storable import sanitize
from worker.inference.detokenize import Detokenizer
from worker.inference.output_text import OutputText
from worker.inference.thinking import ThinkingSplitter


@dataclass(frozen=True, slots=True)
class EndTokens:
    """The tokens at which an answer ends.

    Attributes:
        besides: those that the caller named.
        ignores_own: the model's own do not end it.
    """

    besides: tuple[int, ...] = ()
    ignores_own: bool = False


_OWN: Final = EndTokens()


class Answer:
    """The tokens and text that a job has generated so far. Not thread-safe.

    Attributes:
        is_resumable: another run can continue where this one ends.
        finish_reason: set once the answer ends by its own rules; later tokens are dropped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        stops: Sequence[str] = (),
        is_whole: bool = False,
        ends: EndTokens = _OWN,
        num_top: int | None = None,
    ) -> None:
        """Set up an empty answer.

        Args:
            tokenizer: of the model.
            max_tokens: most of its tokens.
            stops: its stop strings.
            is_whole: one request must generate all of it.
            ends: its end tokens.
            num_top: alternatives of each token whose scores are kept; None: it has no scores.
        """
        self.is_resumable = not is_whole
        self._fingerprint = tokenizer.fingerprint
        self._named_ends = frozenset(ends.besides)
        self._eos_ids = self._named_ends | (set() if ends.ignores_own else set(tokenizer.eos_ids))
        self._max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._output = OutputText(stops)
        self._shown: dict[int, str] = {}
        self._ids: list[int] = []
        self._num_resumed = 0
        self._num_reasoning = 0
        self._scored = None if num_top is None else ScoredTokens(num_top, spell=tokenizer.token_bytes.spelled)
        self._num_unseen = 0  # tokens before the first one with visible text
        self._num_told = 0  # tokens whose scores were taken
        self._run_end = max_tokens
        self._is_final = False
        self.finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        """Number of generated tokens: up to the end token, the limit, or the end of a stop string."""
        return len(self._ids)

    @property
    def is_streaming(self) -> bool:
        """True once this run has generated a token of its own."""
        return len(self._ids) > self._num_resumed

    @property
    def is_full(self) -> bool:
        """True once the answer has as many tokens as this run requested."""
        return len(self._ids) >= self._run_end

    @property
    def num_wanted(self) -> int:
        """Number of tokens that this run may still generate."""
        return self._run_end - len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """The generated token ids; the next run's prompt ends with them."""
        return tuple(self._ids)

    @property
    def has_own_stops(self) -> bool:
        """True if only we may match its stop strings: they end neither thinking nor calls, kept apart."""
        return self._output.is_split and self._output.has_stops

    @property
    def ends_here(self) -> bool:
        """True if it may end by our own rules where no engine was told to."""
        return self.has_own_stops or bool(self._named_ends) or self._output.ends_itself

    def split_thinking(self, tags: ThinkingTags, *, is_open: bool) -> None:
        """Keep thinking apart from the visible text; call it before the first token."""
        self._show(tags.ids)
        self._output.splitter = ThinkingSplitter(tags, is_open=is_open)

    def split_channels(self, splitter: HarmonySplitter, ids: Mapping[int, str], *, has_calls: bool) -> None:
        """Keep the parts of an answer in channels apart; call it before the first token.

        Args:
            splitter: does so.
            ids: of the tokens around the parts, with their text.
            has_calls: whether it finds calls, too.
        """
        self._show(ids)
        self._output.splitter = splitter
        if has_calls:
            self._output.find_calls(None, is_single=splitter.is_single)

    def find_calls(self, parser: CallParser, ids: Mapping[int, str]) -> None:
        """Tell calls from text; call it before the first token.

        Args:
            parser: does so.
            ids: of the tokens around calls, with their text.
        """
        self._show(ids)
        self._output.find_calls(parser, is_single=parser.is_single)

    def _show(self, ids: Mapping[int, str]) -> None:
        """Write these tokens as text, though they may be special."""
        self._shown |= ids
        self._detokenizer = Detokenizer(self._tokenizer, shown=self._shown)

    def begin_segment(self, *, until: int) -> None:
        """Start a run that generates until the answer has `until` or `max_tokens` tokens."""
        self._num_resumed = len(self._ids)
        self._run_end = min(until, self._max_tokens)

    def resume(self, ids: Sequence[int], scores: Sequence[Score] | None = None) -> None:
        """Start with these tokens of an earlier run, as if this one had generated them.

        Without the scores that it needs it starts over.
        """
        if self._scored is not None and len(scores or ()) != len(ids):
            return
        self.push(ids, scores)
        self._num_resumed = len(self._ids)

    def take(self, delta: EngineDelta) -> None:
        """Append a delta of the stream, unless the answer has ended."""
        if isinstance(delta, TokenDelta):
            self.push(delta.ids, delta.scores)

    def push(self, ids: Sequence[int], scores: Sequence[Score] | None = None) -> None:
        """Append tokens until the answer ends; the rest is dropped.

        Raises:
            ValueError: the answer has scores, and these tokens have not.
        """
        if self._scored is not None and len(scores or ()) != len(ids):
            raise ValueError("tokens without their log probabilities")
        # One by one: otherwise we could not know which token completed a stop string.
        for place, token_id in enumerate(ids):
            if self.finish_reason is not None:
                return
            self._push_one(token_id, scores[place] if scores else None)

    def finish(self) -> FinishReason:
        """End the answer because the engine did, and return why. Below the limit it was an end token."""
        if self.finish_reason is None:
            self.finish_reason = FinishReason.STOP
        return self.finish_reason

    def output(self) -> Output:
        """Return the final output in storable form, complete or cut off. Call it once."""
        self._write(self._detokenizer.flush())
        self._output.flush()
        self._is_final = True
        return self.snapshot()

    def snapshot(self) -> Output:
        """Return the output that is final so far. Later tokens may still change an incomplete character."""
        text, calls, replaced = self._output.visible()
        reasoning, reasoning_replaced = sanitize(self._output.raw_reasoning())
        return Output(
            text=text,
            ids=self.ids,
            num_tokens=len(self._ids),
            fingerprint=self._fingerprint,
            replaced=replaced or reasoning_replaced,
            is_resumable=self.is_resumable,
            reasoning=reasoning,
            reasoning_tokens=self._num_reasoning,
            log_probs=self._packed_scores(),
            calls=calls,
        )

    def take_log_probs(self) -> bytes | None:
        """Return the scores of tokens whose text became final since the last call; None: there are none."""
        if self._scored is None:
            return None
        begin, end = self._seen()
        first = max(begin, self._num_told)
        if end <= first:
            return None
        self._num_told = end
        return self._scored.packed(begin=begin, end=end, first=first)

    def take_new(self) -> OutputPiece:
        """Return the output that became final since the last call, in storable form."""
        return self._output.take()

    def _packed_scores(self) -> bytes | None:
        if self._scored is None:
            return None
        begin, end = self._seen()
        return self._scored.packed(begin=begin, end=end)

    def _seen(self) -> tuple[int, int]:
        """Return the first token with visible text, and the one after the last whose text is final."""
        if self._scored is None:
            return 0, 0
        end = self._scored.num_within(self._output.num_withheld, is_final=self._is_final)
        return self._num_unseen, max(self._num_unseen, end)

    def _push_one(self, token_id: int, score: Score | None) -> None:
        # A request names one end token to the engine; a model may have others.
        if token_id in self._eos_ids:
            self.finish_reason = FinishReason.STOP
            return
        self._ids.append(token_id)
        splitter = self._output.splitter
        was_over = splitter is None or splitter.has_ended
        text = self._detokenizer.push([token_id])
        self._write(text)
        if self._scored is not None and score is not None:
            self._scored.add(token_id, score, num_chars=len(text))
            if splitter is not None and splitter.has_begun and not splitter.is_visible:
                self._num_unseen = len(self._ids)
        if splitter is not None and splitter.has_begun and not was_over:
            self._num_reasoning = len(self._ids)
        if self.finish_reason is None and len(self._ids) >= self._max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def _write(self, text: str) -> None:
        if self._output.add(text) is not None:
            self.finish_reason = FinishReason.STOP
