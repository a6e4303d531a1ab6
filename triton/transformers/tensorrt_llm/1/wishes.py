"""Request options beyond prompt and length that transformers supports per request."""

from typing import Final

from .sampling import Sampling
from .wire import BadRequestError, PbRequest, read_input, read_number

# Options that continuous batching does not support per request, with the value that means "off".
_UNSUPPORTED: Final = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "len_penalty": 0.0,
    "min_length": 0.0,
}


def read_sampling(request: PbRequest) -> Sampling:
    """Read the sampling parameters. As in TensorRT-LLM, top-k is 1 if top-k and top-p are absent or 0.

    A seed is accepted but has no effect: requests that run together share one random generator.

    Raises:
        BadRequestError: it asks for an option that this engine does not support; refuse the request.
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
    """Read the token that ends the answer; -1 if none does."""
    return int(read_number(request, "end_id", -1))


def _check(sampling: Sampling) -> None:
    if not sampling.temperature > 0:
        raise BadRequestError(f"temperature is {sampling.temperature} but must not be negative")
    if sampling.top_k < 0:
        raise BadRequestError(f"runtime_top_k is {sampling.top_k} but must not be negative")
    if not 0 < sampling.top_p <= 1:
        raise BadRequestError(f"runtime_top_p must be between 0 and 1, not {sampling.top_p}")


def _holds_words(request: PbRequest, name: str) -> bool:
    """Return True if a word list holds a word: the ends in its second row are padded with -1."""
    found = read_input(request, name)
    return found is not None and bool((found.reshape(2, -1)[1] > 0).any())
