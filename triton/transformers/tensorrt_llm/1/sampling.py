"""How a request wants its tokens picked, as far as transformers can do that for each request alone."""

from dataclasses import dataclass
from typing import Final

from .wire import BadRequestError, PbRequest, read_input

# What continuous batching cannot do for one request among others, and the values that ask for nothing.
_UNSUPPORTED: Final = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "len_penalty": None,
    "min_length": None,
}


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked.

    Attributes:
        temperature: above 0.
        top_k: tokens to choose from; 1 is greedy, 0 is all.
        top_p: share of the probability to choose from, up to 1.
    """

    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.top_k == 1


def read_sampling(request: PbRequest) -> Sampling:
    """What the request asks for; as in TensorRT-LLM, top-k is 1 unless it says otherwise.

    A seed is taken and has no effect: requests that run together draw from one generator.

    Raises:
        BadRequestError: it asks for something that this engine cannot do.
    """
    for name, neutral in _UNSUPPORTED.items():
        value = _number(request, name, neutral)
        if value not in (neutral, 0 if neutral is None else neutral):
            raise BadRequestError(f"the transformers engine has no {name}")
    if _given(request, "bad_words_list"):
        raise BadRequestError("the transformers engine has no bad_words_list")
    top_k, top_p = _number(request, "runtime_top_k", None), _number(request, "runtime_top_p", None)
    temperature = _number(request, "temperature", None)
    if top_k is None:
        top_k = 1 if top_p in {None, 0} else 0
    if temperature == 0:
        temperature, top_k = None, 1
    sampling = Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_k=int(top_k),
        top_p=1.0 if top_p in {None, 0} else float(top_p or 1),
    )
    _check(sampling)
    return sampling


def read_end_id(request: PbRequest) -> int:
    """The token that ends the answer; -1 when nothing does."""
    found = _number(request, "end_id", None)
    return -1 if found is None else int(found)


def _check(sampling: Sampling) -> None:
    if not sampling.temperature > 0:
        raise BadRequestError(f"temperature must not be negative, as {sampling.temperature} is")
    if sampling.top_k < 0:
        raise BadRequestError(f"runtime_top_k must not be negative, as {sampling.top_k} is")
    if not 0 < sampling.top_p <= 1:
        raise BadRequestError(f"runtime_top_p must be between 0 and 1, not {sampling.top_p}")


def _number(request: PbRequest, name: str, absent: float | None) -> float | None:
    found = read_input(request, name)
    return absent if found is None or found.size == 0 else float(found.ravel()[0])


def _given(request: PbRequest, name: str) -> bool:
    """Whether a word list holds a word: the ends in its second row are padded with -1."""
    found = read_input(request, name)
    return found is not None and bool((found.reshape(2, -1)[1] > 0).any())
