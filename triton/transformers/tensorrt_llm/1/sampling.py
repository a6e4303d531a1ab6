"""The sampling parameters of a sequence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """The parameters that transformers supports per request.

    Attributes:
        temperature: above 0.
        top_k: number of tokens to choose from; 1 is greedy, 0 means all.
        top_p: share of the probability to choose from, above 0 and up to 1.
    """

    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        """True if the sampling is deterministic."""
        return self.top_k == 1
