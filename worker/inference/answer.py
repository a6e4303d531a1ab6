"""One answer as it grows: ids in, text out, and the reason why it ends."""

from collections.abc import Sequence

from jobs.checkpoints import Output
from jobs.prompts.tokenizer import Tokenizer, pack_ids
from jobs.states import FinishReason
from worker.engine.deltas import Piece, Tokens
from worker.engine.verdicts import sanitize
from worker.inference.detokenize import Detokenizer
from worker.inference.output_text import Said


class Answer:
    """What a job has generated so far; not for several threads.

    Attributes:
        is_resumable: another run can go on where this one ends.
        finish_reason: set once the answer has ended by its own rules; what comes later is dropped.
    """

    is_resumable = True

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int, stops: Sequence[str] = ()) -> None:
        self._fingerprint = tokenizer.fingerprint
        self._eos_ids = frozenset(tokenizer.eos_ids)
        self._max_tokens = max_tokens
        self._detokenizer = Detokenizer(tokenizer)
        self._said = Said(stops)
        self._ids: list[int] = []
        self._num_resumed = 0
        self._run_end = max_tokens
        self.finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        """Generated tokens: up to the end token, the limit, or the one that completed a stop string."""
        return len(self._ids)

    @property
    def is_streaming(self) -> bool:
        """Whether this run has generated a token, beside those that it took over."""
        return len(self._ids) > self._num_resumed

    @property
    def is_full(self) -> bool:
        """Whether it has as many tokens as the engine was asked for."""
        return len(self._ids) >= self._run_end

    @property
    def num_wanted(self) -> int:
        """Tokens that this run may still generate."""
        return self._run_end - len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """The generated tokens; the next run's prompt ends with them."""
        return tuple(self._ids)

    def begin_run(self, *, until: int) -> None:
        """The engine is asked for tokens until there are so many in all, at most `max_tokens`."""
        self._num_resumed = len(self._ids)
        self._run_end = min(until, self._max_tokens)

    def resume(self, ids: Sequence[int]) -> None:
        """The answer begins with these tokens of an earlier run, as if they had come in this one."""
        self.push(ids)
        self._num_resumed = len(self._ids)

    def take(self, piece: Piece) -> None:
        """What the engine said belongs to the answer, as far as it has not ended."""
        if isinstance(piece, Tokens):
            self.push(piece.ids)

    def push(self, ids: Sequence[int]) -> None:
        """These tokens belong to the answer, as far as it has not ended."""
        # One by one: only so is it known which token completed a stop string.
        for token_id in ids:
            if self.finish_reason is not None:
                return
            self._push_one(token_id)

    def finish(self) -> FinishReason:
        """The engine has ended the answer; why. Fewer tokens than the limit mean an end token."""
        if self.finish_reason is None:
            self.finish_reason = FinishReason.STOP
        return self.finish_reason

    def output(self) -> Output:
        """What there is, as it can be stored, also of an answer that was cut off; call it once."""
        self._write(self._detokenizer.flush())
        self._said.flush()
        return self.snapshot()

    def snapshot(self) -> Output:
        """What there is for certain; characters that later tokens may still change are left out."""
        text, replaced = sanitize(self._said.raw())
        return Output(
            text=text,
            packed_ids=pack_ids(self._ids),
            num_tokens=len(self._ids),
            fingerprint=self._fingerprint,
            replaced=replaced,
        )

    def take_text(self) -> str:
        """The text that became certain since it was last taken, as it can be stored."""
        return self._said.take()

    def _push_one(self, token_id: int) -> None:
        # The engine is told of one end token; a model may have others.
        if token_id in self._eos_ids:
            self.finish_reason = FinishReason.STOP
            return
        self._ids.append(token_id)
        self._write(self._detokenizer.push([token_id]))
        if self.finish_reason is None and len(self._ids) >= self._max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def _write(self, text: str) -> None:
        if self._said.add(text) is not None:
            self.finish_reason = FinishReason.STOP
