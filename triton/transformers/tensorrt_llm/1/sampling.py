"""How the next token of a sequence is picked."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """What transformers can do for each request alone.

    Attributes:
        temperature: above 0.
        top_k: tokens to choose from; 1 is greedy, 0 is all.
        top_p: share of the probability to choose from, above 0, up to 1.
    """

    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.top_k == 1
