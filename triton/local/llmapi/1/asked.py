"""What a request of `llmapi` asks for, with the defaults of TensorRT-LLM's LLM API."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import triton_python_backend_utils as pb_utils

# Objects of Triton's stub, which has no types.
PbRequest: TypeAlias = Any

_MAX_TOKENS = 32  # the LLM API's default
# What the stand-in cannot do, and the value that asks for nothing.
_MISSING = {
    "image_url": None,
    "sampling_param_best_of": 1,
    "sampling_param_frequency_penalty": 0,
    "sampling_param_presence_penalty": 0,
    "return_cumulative_logprob": False,
    "lora_id": None,
    "lora_name": None,
    "lora_path": None,
}


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        prompt: its text.
        streaming: responses are sent as they come.
        max_tokens: the maximum number of output tokens.
        stops: strings that end the answer, which then lacks them.
        temperature: of the draws; None means 1.
        top_k: number of tokens to choose from; with top_p at 0 as well the request is greedy.
        top_p: share of the probability to choose from.
        seed: of the draws; None means always the same one.
        excludes_prompt: the answer does not begin with the prompt.
    """

    prompt: str
    streaming: bool
    max_tokens: int
    stops: tuple[str, ...]
    temperature: float | None
    top_k: int
    top_p: float
    seed: int | None
    excludes_prompt: bool


def read(request: PbRequest, *, is_decoupled: bool) -> Asked:
    """Read a request to a model that may stream only if it is decoupled.

    Shapes:
        text_input: BYTES `[1]`; sampling_param_stop: BYTES `[strings]`; every other one `[1]`.

    Raises:
        ValueError: it is refused.
    """
    for name, nothing in _MISSING.items():
        if input_of(request, name, absent=nothing) != nothing:
            raise ValueError(f"the stand-in has no {name}")
    streaming = bool(input_of(request, "streaming", absent=False))
    if streaming and not is_decoupled:
        raise ValueError("Streaming is only supported in decoupled mode.")
    stops = pb_utils.get_input_tensor_by_name(request, "sampling_param_stop")
    return Asked(
        prompt=input_of(request, "text_input", absent=b"").decode(),
        streaming=streaming,
        max_tokens=int(input_of(request, "sampling_param_max_tokens", absent=_MAX_TOKENS)),
        stops=() if stops is None else tuple(each.decode() for each in stops.as_numpy().ravel()),
        temperature=input_of(request, "sampling_param_temperature", absent=None),
        top_k=int(input_of(request, "sampling_param_top_k", absent=0)),
        top_p=float(input_of(request, "sampling_param_top_p", absent=0.0)),
        seed=input_of(request, "sampling_param_seed", absent=None),
        excludes_prompt=bool(input_of(request, "sampling_param_exclude_input_from_output", absent=False)),
    )


def input_of(request: PbRequest, name: str, *, absent: Any) -> Any:  # noqa: ANN401  # see above
    """Return the one value of an input, or `absent`.

    Raises:
        ValueError: it has several.
    """
    found = pb_utils.get_input_tensor_by_name(request, name)
    if found is None:
        return absent
    values = found.as_numpy()
    if values.size != 1:
        raise ValueError(f"Expected a scalar tensor for tensor {name}")
    return values.item(0)
