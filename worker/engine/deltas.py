"""The deltas of an engine's stream: token ids or text, what it says of the prompt, tensors by name."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.answers.log_probs import Score
from jobs.states import FinishReason


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """The token ids that the engine generated.

    Attributes:
        scores: the log probabilities of each, where the request asks for them.
    """

    ids: list[int]
    scores: list[Score] | None = None


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


@dataclass(frozen=True, slots=True)
class CachedPrompt:
    """What the engine had of the prompt in its cache, and so did not compute.

    Attributes:
        tokens: counted in tokens.
        blocks: counted in blocks of its KV cache, by an engine that does not count tokens.
    """

    tokens: int = 0
    blocks: int = 0

    def of(self, prompt_tokens: int, *, tokens_per_block: int) -> int:
        """Return the tokens of a prompt of this length; the last block may have been reused in part."""
        return min(prompt_tokens, self.tokens + self.blocks * tokens_per_block)


@dataclass(frozen=True, slots=True)
class VectorDelta:
    """The vector of the prompt, all of it.

    Attributes:
        packed: float32, little-endian.
    """

    packed: bytes


def cached_prompt(told: object, name: str) -> list[CachedPrompt]:
    """Read a number of tokens among what a foreign server tells; nothing if it does not tell."""
    tokens = told.get(name) if isinstance(told, dict) else None
    return [CachedPrompt(tokens)] if isinstance(tokens, int) and tokens >= 0 else []


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one response holds of a tensor that the request asks for by name.

    Attributes:
        name: of the tensor.
        datatype: by Triton's name.
        shape: its dimensions without that of batches.
        data: its elements in C order, little-endian.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


EngineDelta = TokenDelta | TextDelta | VectorDelta | CachedPrompt | OutputDelta


def joined(deltas: Sequence[EngineDelta]) -> list[EngineDelta]:
    """Merge consecutive token deltas into one, and keep all others."""
    found = list[EngineDelta]()
    for each in deltas:
        last = found[-1] if found else None
        if isinstance(each, TokenDelta) and isinstance(last, TokenDelta):
            scores = [*(last.scores or ()), *(each.scores or ())]
            found[-1] = TokenDelta([*last.ids, *each.ids], scores or None)
        else:
            found.append(each)
    return found
