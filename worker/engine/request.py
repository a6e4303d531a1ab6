"""What the engine is asked to do, whatever the model's tensors are called."""

from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt

from jobs.prompts.tokenizer import TokenIds

Tensors = dict[str, npt.NDArray[Any]]

# Below it logits are divided by so little that they overflow; vLLM takes the same for greedy.
_GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the engine picks tokens.

    Attributes:
        temperature: 0 picks the most likely token each time.
        top_p: share of the probability to choose from; None: all of it.
        top_k: tokens to choose from; None: all of them.
        seed: of the engine's generator; None: nothing is drawn.
        min_tokens: before which no end token comes; None: none.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_tokens: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Tell whether nothing is left to chance."""
        return self.temperature < _GREEDY_BELOW or self.top_k == 1 or self.top_p == 0


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine is asked to do.

    Attributes:
        request_id: unique among the engine's requests.
        ids: the prompt.
        max_tokens: output tokens after which it ends.
        end_id: the token at which it ends.
        pad_id: fills up batches.
        sampling: how tokens are picked.
        text: the prompt for models that take text; empty for the others.
        stops: strings at which an answer ends that nobody can end early.
    """

    request_id: str
    ids: TokenIds
    max_tokens: int
    end_id: int
    pad_id: int
    sampling: Sampling = Sampling()
    text: str = ""
    stops: tuple[str, ...] = ()
