"""A server's model configurations: the entry point, the inner model that generates, the adapter."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from jobs.errors import EngineError
from jobs.settings import TritonSettings
from worker.engine.triton.adapter import GUIDE_INPUTS, Adapter, Kind
from worker.engine.triton.ids import IdsAdapter
from worker.engine.triton.llmapi import LlmapiAdapter
from worker.engine.triton.lora import DATATYPES, LORA_INPUTS
from worker.engine.triton.text import TextAdapter
from worker.engine.triton.vllm import VllmAdapter

# A message of Triton's generated protocol code, which has no types.
ModelConfig = Any
_NEEDED: Final[dict[Kind, frozenset[str]]] = {
    "ids": frozenset({"input_ids", "input_lengths", "request_output_len", "streaming"}),
    "llmapi": frozenset({"text_input", "sampling_param_max_tokens"}),
    "ensemble": frozenset({"text_input", "max_tokens"}),
    "bls": frozenset({"text_input", "max_tokens"}),
    "vllm": frozenset({"text_input", "sampling_parameters"}),
}
# Names in TensorRT-LLM's model repository; an ensemble's configuration names its own.
_ENGINE: Final = "tensorrt_llm"
_PREPROCESSING: Final = "preprocessing"
# Where text is all that comes back, as many values as there are tokens count them, even if they mean nothing.
_COUNTED_BY: Final = "return_log_probs"
# Filled in by operators of engines that take adapters.
_LORA_CACHE: Final = (
    "lora_cache_optimal_adapter_size",
    "lora_cache_max_adapter_size",
    "lora_cache_gpu_memory_fraction",
    "lora_cache_host_memory_bytes",
    "lora_prefetch_dir",
)
_TRUE: Final = frozenset({"true", "1", "t", "y", "yes"})
_FALSE: Final = frozenset({"false", "0", "f", "n", "no"})


@dataclass(frozen=True, slots=True)
class Offer:
    """The model configurations of one entry point.

    Attributes:
        entry: the model that requests go to.
        engine: the model that generates; the entry itself if it takes token ids.
        preprocessing: the model that encodes text; None if there is none or it is unknown.
    """

    entry: ModelConfig
    engine: ModelConfig
    preprocessing: ModelConfig | None = None

    @property
    def inputs(self) -> frozenset[str]:
        """Names of the tensors that the entry takes."""
        return frozenset(each.name for each in self.entry.input)


async def read_offer(
    model_name: str, config_of: Callable[[str], Awaitable[ModelConfig | None]]
) -> Offer | None:
    """Read the configurations of an entry point.

    Args:
        model_name: name of the entry.
        config_of: reads a model's configuration from the server, None if it has no such model.

    Returns:
        None if the server has no such model.
    """
    entry = await config_of(model_name)
    if entry is None:
        return None
    if "text_input" not in {each.name for each in entry.input}:
        return Offer(entry, entry)
    steps = [step.model_name for step in entry.ensemble_scheduling.step]
    if not steps and (_takes(entry, "sampling_parameters") or _takes(entry, "sampling_param_max_tokens")):
        return Offer(entry, entry)
    inside = [await config_of(name) for name in steps or (_PREPROCESSING, _ENGINE)]
    return Offer(
        entry,
        engine=next((each for each in inside if _takes(each, "input_ids")), entry),
        preprocessing=next((each for each in inside if _takes(each, "QUERY")), None),
    )


def adapter_for(offer: Offer, settings: TritonSettings) -> Adapter:
    """Choose the adapter of this entry point.

    Raises:
        EngineError: no adapter fits it, or it cannot stream; an operator must change it.
    """
    kind = kind_of(offer) if settings.adapter == "auto" else settings.adapter
    if missing := _NEEDED[kind] - offer.inputs:
        raise EngineError(
            f"the model does not take {', '.join(sorted(missing))}, which the adapter `{kind}` needs;"
            " see LONGBATCH_TRITON__MODEL_NAME and LONGBATCH_TRITON__ADAPTER"
        )
    for config in not_decoupled(offer, kind):
        raise EngineError(
            f"the model {config.name} is not decoupled, so it cannot stream; set decoupled_mode"
        )
    name: str = offer.entry.name
    inputs = _usable(offer)
    if kind in ("ensemble", "bls"):
        inputs |= {_COUNTED_BY} & offer.inputs
    if kind == "ids":
        return IdsAdapter(
            name, inputs, reuses_prefix=reuses_prefix(offer.engine), lora_type=lora_type(offer, inputs)
        )
    if kind == "vllm":
        return VllmAdapter(name, offer.inputs)
    if kind == "llmapi":
        is_decoupled = bool(offer.entry.model_transaction_policy.decoupled)
        # Releases that take no adapters pass `streaming` to the LLM API as another argument: the answer comes
        # whole (fixed with the adapters, NVIDIA/TensorRT-LLM pull request 14079).
        is_streaming = is_decoupled and "lora_id" in offer.inputs
        return LlmapiAdapter(name, inputs, is_streaming=is_streaming, is_decoupled=is_decoupled)
    accumulates = kind == "bls" and flag(offer.entry, "accumulate_tokens", absent=False)
    return TextAdapter(
        model_name=name,
        inputs=inputs,
        kind=kind,
        engine_name=offer.engine.name,
        # On by default.
        adds_bos=flag(offer.preprocessing, "add_special_tokens", absent=True),
        is_streaming=accumulates or settings.streams_fragments,
        accumulates=accumulates,
        takes_stop=_takes(offer.engine, "stop"),
    )


def kind_of(offer: Offer) -> Kind:
    """Choose the kind of adapter by the model's tensors, whatever its name."""
    if offer.entry.ensemble_scheduling.step:
        return "ensemble"
    if "sampling_parameters" in offer.inputs:
        return "vllm"
    if "sampling_param_max_tokens" in offer.inputs:
        return "llmapi"
    return "bls" if "text_input" in offer.inputs else "ids"


def entry_kind(config: ModelConfig) -> Kind | None:
    """Return the kind of adapter that fits the model, or None if it takes what no adapter sends."""
    offer = Offer(config, config)
    kind = kind_of(offer)
    return kind if _NEEDED[kind] <= offer.inputs else None


def not_decoupled(offer: Offer, kind: Kind) -> list[ModelConfig]:
    """Return models that must be decoupled but are not.

    An ensemble is decoupled if its steps are; `llmapi` answers whole where it is not.
    """
    if kind == "llmapi":
        return []
    models = [offer.engine] if kind == "ensemble" else [offer.entry, offer.engine]
    return [each for each in models if not each.model_transaction_policy.decoupled]


def parameter(config: ModelConfig | None, name: str) -> str:
    """Read a parameter of a model's configuration; empty if it is absent or was never filled in."""
    if config is None or name not in config.parameters:
        return ""
    text: str = config.parameters[name].string_value
    return "" if text.startswith("${") else text


def number(config: ModelConfig | None, name: str) -> int:
    """Read a numeric parameter; 0 if it is absent or was never filled in."""
    text = parameter(config, name)
    return int(text) if text.isdigit() else 0


def flag(config: ModelConfig | None, name: str, *, absent: bool) -> bool:
    """Read a boolean parameter; `absent` if it is neither true nor false."""
    text = parameter(config, name).lower()
    return text in _TRUE if text in _TRUE | _FALSE else absent


def reuses_prefix(config: ModelConfig) -> bool:
    """Return True unless TensorRT-LLM's reuse of KV blocks, on by default, is turned off."""
    return flag(config, "enable_kv_cache_reuse", absent=True)


def lora_type(offer: Offer, inputs: frozenset[str]) -> str:
    """Return in which datatype adapters' weights are sent; empty if the engine was not set up for adapters.

    NVIDIA's template declares their tensors for every engine; operators of one that was built with the LoRA
    plugin fill in its cache of adapters, too.
    """
    is_set_up = any(parameter(offer.engine, name) for name in _LORA_CACHE)
    if not (is_set_up and inputs >= LORA_INPUTS):
        return ""
    types = {each.name: each.data_type for each in offer.entry.input}
    return DATATYPES.get(types.get("lora_weights", 0), "")


def _usable(offer: Offer) -> frozenset[str]:
    """Return the inputs, without those that guide an answer if the engine was not set up for it.

    Stand-ins of TensorRT-LLM declare its inputs, and name those of them that they do nothing with.
    """
    is_set_up = parameter(offer.engine, "guided_decoding_backend") != ""
    inputs = offer.inputs if is_set_up else offer.inputs - GUIDE_INPUTS
    return inputs - {*parameter(offer.engine, "unsupported_inputs").split(",")}


def _takes(config: ModelConfig | None, name: str) -> bool:
    return config is not None and any(each.name == name for each in config.input)
