"""What a request wishes beyond its prompt and its length, as far as transformers can do it for one alone."""

from typing import Final

from .sampling import Sampling
from .wire import BadRequestError, PbRequest, read_input, read_number

# What continuous batching cannot do for one request among others, and the value that asks for nothing.
_UNSUPPORTED: Final = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "len_penalty": 0.0,
    "min_length": 0.0,
}


def read_sampling(request: PbRequest) -> Sampling:
    """How its tokens are to be picked; as in TensorRT-LLM, top-k is 1 where top-k and top-p are absent or 0.

    A seed is taken and has no effect: requests that run together draw from one generator.

    Raises:
        BadRequestError: it asks for something that this engine cannot do.
    """
    for name, neutral in _UNSUPPORTED.items():
        if read_number(request, name, neutral) != neutral:
            raise BadRequestError(f"the transformers engine has no {name}")
    if _holds_words(request, "bad_words_list"):
        raise BadRequestError("the transformers engine has no bad_words_list")
    top_p = read_number(request, "runtime_top_p", 0.0)
    top_k = read_number(request, "runtime_top_k", 0.0)
    if top_k == 0 and top_p == 0:
        top_k = 1.0
    temperature = read_number(request, "temperature", 1.0)
    if temperature == 0:
        temperature, top_k = 1.0, 1.0
    sampling = Sampling(temperature=temperature, top_k=int(top_k), top_p=top_p or 1.0)
    _check(sampling)
    return sampling


def read_end_id(request: PbRequest) -> int:
    """The token that ends the answer; -1 when none does."""
    return int(read_number(request, "end_id", -1))


def _check(sampling: Sampling) -> None:
    if not sampling.temperature > 0:
        raise BadRequestError(f"temperature must not be negative, as {sampling.temperature} is")
    if sampling.top_k < 0:
        raise BadRequestError(f"runtime_top_k must not be negative, as {sampling.top_k} is")
    if not 0 < sampling.top_p <= 1:
        raise BadRequestError(f"runtime_top_p must be between 0 and 1, not {sampling.top_p}")


def _holds_words(request: PbRequest, name: str) -> bool:
    """Whether a word list holds a word: the ends in its second row are padded with -1."""
    found = read_input(request, name)
    return found is not None and bool((found.reshape(2, -1)[1] > 0).any())
