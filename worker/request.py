"""What the engine is asked to do, whatever the model's tensors are called."""

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from jobs.tokens import TokenIds

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the engine picks tokens; None leaves it to the engine, which is greedy then."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_tokens: int | None = None


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
