"""Adapters to the tensors of different kinds of models: the interface and what they share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from jobs.prompts.abilities import GUIDED, LORA, PENALTIES
from jobs.prompts.guides import Guide, GuideKind, choice_grammar
from jobs.states import FinishReason
from worker.engine.abilities import Abilities
from worker.engine.deltas import CachedPrompt, EngineDelta, TextDelta
from worker.engine.request import Request, Sampling

Tensors = dict[str, npt.NDArray[Any]]
Kind = Literal["ids", "llmapi", "ensemble", "bls", "vllm"]
# The raw bytes of a response's tensors, by name.
Outputs = Mapping[str, bytes]

_GUIDE_TYPE: Final = "guided_decoding_guide_type"
_GUIDE: Final = "guided_decoding_guide"
GUIDE_INPUTS: Final = frozenset({_GUIDE_TYPE, _GUIDE})
_GUIDE_TYPES: Final = {
    GuideKind.JSON: "json_schema",
    GuideKind.REGEX: "regex",
    GuideKind.GRAMMAR: "ebnf_grammar",
}
_LENGTH_BYTES: Final = 4  # before each element of a BYTES tensor, little-endian
_REASONS: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
# TensorRT-LLM's and vLLM's finish reasons of answers that are not complete.
_GIVEN_UP: Final = frozenset({"cancelled", "timeout", "abort", "error"})


@dataclass(frozen=True, slots=True)
class Stop:
    """A request that ends another one with the same id.

    Attributes:
        model_name: the model that it is sent to.
        tensors: its inputs.
    """

    model_name: str
    tensors: Tensors


class Adapter(Protocol):
    """The adapter to one kind of model; frozen, so that two of them can be compared."""

    @property
    def kind(self) -> Kind:
        """The kind of model that it adapts to."""

    @property
    def model_name(self) -> str:
        """Name of the model that requests are sent to."""

    @property
    def abilities(self) -> Abilities:
        """What the model can do."""

    def tensors(self, request: Request) -> Tensors:
        """Build the request's tensors as the model takes them."""

    def weights(self, request: Request) -> Tensors:
        """Read what a request must bring whose adapter the engine does not have.

        Raises:
            EngineUnableError: it cannot be read, or the engine cannot take it.
        """

    def stop(self) -> Stop | None:
        """Build the request that ends another one cleanly. Returns None if only cutting the stream does."""

    def delta(self, outputs: Outputs) -> EngineDelta | None:
        """Read the delta of a response. Returns None if it has none."""


def text_in(raw: bytes) -> str | None:
    """Decode the first element of a BYTES tensor, or return None. Invalid UTF-8 becomes U+FFFD."""
    if len(raw) < _LENGTH_BYTES:
        return None
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "little")
    return raw[_LENGTH_BYTES:end].decode(errors="replace")


def cached_in(outputs: Outputs) -> CachedPrompt | None:
    """Read what a final response says of the prompt. Returns None if it says nothing.

    Shapes:
        kv_cache_reused_blocks: INT32 `[1, 1]`, where the request asked for it.
        kv_cache_reused_block: the same from `llmapi`; INT32 `[1]`, or BYTES `[1]` with the number in digits.
    """
    raw = outputs.get("kv_cache_reused_blocks") or outputs.get("kv_cache_reused_block") or b""
    if len(raw) > _LENGTH_BYTES:
        digits = text_in(raw) or ""
        return CachedPrompt(blocks=int(digits)) if digits.isdecimal() else None
    blocks = np.frombuffer(raw, dtype=np.int32)
    return CachedPrompt(blocks=max(0, int(blocks[0]))) if len(blocks) else None


def bytes_tensor(*texts: str) -> npt.NDArray[np.object_]:
    """Build a BYTES tensor of texts.

    Shapes:
        returns `[texts]`.
    """
    return np.array([text.encode() for text in texts], dtype=np.object_)


def text_delta(
    text: str, *, reason: str | None, num_tokens: int | None = None, is_whole: bool = False
) -> TextDelta:
    """Build the delta of a response. An unknown finish reason in the engine's words means that it goes on."""
    return TextDelta(
        text,
        num_tokens=num_tokens,
        is_whole=is_whole,
        reason=_REASONS.get(reason or ""),
        given_up=reason if reason in _GIVEN_UP else None,
    )


def lacking(inputs: frozenset[str], *, prefix: str, takes_lora: bool = False) -> frozenset[str]:
    """Return what requests cannot ask for: a model declares no input for it.

    Args:
        inputs: names of the tensors that the model declares.
        prefix: see `sampling_tensors`.
        takes_lora: it was set up for adapters.
    """
    names = {
        "temperature": {"temperature"},
        "top_p": {f"{prefix}top_p"},
        "top_k": {f"{prefix}top_k"},
        "min_tokens": {"min_tokens", "min_length"},
        "logprobs": {"return_log_probs"},
        "ignore_eos": {"end_id"},
        **{name: {name} for name in PENALTIES},
    }
    found = frozenset(parameter for parameter, tensors in names.items() if not tensors & inputs)
    # No input that we know, or one of a size that nothing tells; no output of others than the picked token.
    found |= {"min_p", "logit_bias", "top_logprobs"} | (set() if takes_lora else {LORA})
    return found if inputs >= GUIDE_INPUTS else found | GUIDED


def guide_tensors(guide: Guide | None) -> Tensors:
    """Build the tensors that guide an answer.

    Shapes:
        each BYTES `[1, 1]`.

    Source: guided decoding of TensorRT-LLM's backend, v0.19.0 and later.
    """
    match guide:
        case None:
            return {}
        case Guide(GuideKind.CHOICE):
            kind, content = "ebnf_grammar", choice_grammar(guide.choices)
        case Guide(given, content):
            kind = _GUIDE_TYPES[given]
    found = {_GUIDE_TYPE: kind, _GUIDE: content}
    return {name: bytes_tensor(value).reshape(1, 1) for name, value in found.items()}


def sampling_tensors(sampling: Sampling, inputs: frozenset[str], *, prefix: str) -> Tensors:
    """Build the sampling tensors. The names of some differ between releases.

    Top-k 0 means all tokens only with a top-p: the engine's own top-p is 0, and 0 for both is greedy.

    Args:
        sampling: the requested sampling.
        inputs: names of the tensors that the model declares.
        prefix: prepended to the names `top_k` and `top_p`.
    """
    tensors: Tensors = {}
    if sampling.is_greedy:
        tensors[f"{prefix}top_k"] = np.array([[1]], dtype=np.int32)
    else:
        top_p = 1.0 if sampling.top_p is None else sampling.top_p
        tensors["temperature"] = np.array([[sampling.temperature]], dtype=np.float32)
        tensors[f"{prefix}top_k"] = np.array([[sampling.top_k or 0]], dtype=np.int32)
        tensors[f"{prefix}top_p"] = np.array([[top_p]], dtype=np.float32)
    if sampling.seed is not None:
        name = "seed" if "seed" in inputs else "random_seed"
        tensors[name] = np.array([[sampling.seed % 2**64]], dtype=np.uint64)
    for name, value in sampling.penalties.items():
        tensors[name] = np.array([[value]], dtype=np.float32)
    if sampling.min_tokens is not None:
        name = "min_tokens" if "min_tokens" in inputs else "min_length"
        tensors[name] = np.array([[sampling.min_tokens]], dtype=np.int32)
    return tensors
