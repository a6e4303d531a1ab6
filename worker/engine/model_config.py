"""What a server offers: the model that is asked, the one inside it that generates, and how to ask."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from jobs.errors import EngineError
from jobs.settings import TritonSettings
from worker.engine.adapter import Adapter, Kind
from worker.engine.adapter_ids import IdsAdapter
from worker.engine.adapter_text import TextAdapter
from worker.engine.adapter_vllm import VllmAdapter

# Generated code of Triton's protocol, which has no types.
ModelConfig = Any
_NEEDED: Final[dict[Kind, frozenset[str]]] = {
    "ids": frozenset({"input_ids", "input_lengths", "request_output_len", "streaming"}),
    "ensemble": frozenset({"text_input", "max_tokens"}),
    "bls": frozenset({"text_input", "max_tokens"}),
    "vllm": frozenset({"text_input", "sampling_parameters"}),
}
# As TensorRT-LLM's repository names them; an ensemble says it itself.
_ENGINE: Final = "tensorrt_llm"
_PREPROCESSING: Final = "preprocessing"
_TRUE: Final = frozenset({"true", "1", "t", "y", "yes"})
_FALSE: Final = frozenset({"false", "0", "f", "n", "no"})


@dataclass(frozen=True, slots=True)
class Offer:
    """The configurations of one entry point.

    Attributes:
        entry: of the model that is asked.
        engine: of the model that generates; the same one where token ids are taken.
        preprocessing: of the model that encodes text; None: there is none, or it does not tell.
    """

    entry: ModelConfig
    engine: ModelConfig
    preprocessing: ModelConfig | None = None

    @property
    def inputs(self) -> frozenset[str]:
        """The tensors that the entry takes."""
        return frozenset(each.name for each in self.entry.input)


def read_offer(model_name: str, config_of: Callable[[str], ModelConfig | None]) -> Offer | None:
    """The entry point of this name; None: the server has no such model.

    Args:
        model_name: of the entry.
        config_of: asks the server for a model's configuration; None: it has none.
    """
    entry = config_of(model_name)
    if entry is None:
        return None
    if "text_input" not in {each.name for each in entry.input}:
        return Offer(entry, entry)
    steps = [step.model_name for step in entry.ensemble_scheduling.step]
    if not steps and "sampling_parameters" in {each.name for each in entry.input}:
        return Offer(entry, entry)
    inside = [config_of(name) for name in steps or (_PREPROCESSING, _ENGINE)]
    return Offer(
        entry,
        engine=next((each for each in inside if _takes(each, "input_ids")), entry),
        preprocessing=next((each for each in inside if _takes(each, "QUERY")), None),
    )


def adapter_for(offer: Offer, settings: TritonSettings) -> Adapter:
    """How this entry point is asked.

    Raises:
        EngineError: no adapter fits it, or it cannot stream; somebody must change it.
    """
    kind = _kind(offer) if settings.adapter == "auto" else settings.adapter
    if missing := _NEEDED[kind] - offer.inputs:
        raise EngineError(
            f"the model takes no {', '.join(sorted(missing))}, which the adapter `{kind}` needs;"
            " see LONGBATCH_TRITON__MODEL_NAME and LONGBATCH_TRITON__ADAPTER"
        )
    for config in not_decoupled(offer, kind):
        raise EngineError(
            f"the model {config.name} is not decoupled, so it cannot stream; set decoupled_mode"
        )
    name: str = offer.entry.name
    if kind == "ids":
        return IdsAdapter(name, offer.inputs)
    if kind == "vllm":
        return VllmAdapter(name, offer.inputs)
    accumulates = kind == "bls" and flag(offer.entry, "accumulate_tokens", absent=False)
    return TextAdapter(
        model_name=name,
        inputs=offer.inputs,
        kind=kind,
        engine_name=offer.engine.name,
        # Left out it is on.
        adds_bos=flag(offer.preprocessing, "add_special_tokens", absent=True),
        is_streaming=accumulates or settings.streams_fragments,
        accumulates=accumulates,
        takes_stop=_takes(offer.engine, "stop"),
    )


def not_decoupled(offer: Offer, kind: Kind) -> list[ModelConfig]:
    """Models that would have to be decoupled and are not; an ensemble is what its steps are."""
    models = [offer.engine] if kind == "ensemble" else [offer.entry, offer.engine]
    return [each for each in models if not each.model_transaction_policy.decoupled]


def parameter(config: ModelConfig | None, name: str) -> str:
    """A parameter of a model's configuration; empty when it is absent or was never filled in."""
    if config is None or name not in config.parameters:
        return ""
    text: str = config.parameters[name].string_value
    return "" if text.startswith("${") else text


def number(config: ModelConfig | None, name: str) -> int:
    """A number among the parameters; 0 when it is absent or was never filled in."""
    text = parameter(config, name)
    return int(text) if text.isdigit() else 0


def flag(config: ModelConfig | None, name: str, *, absent: bool) -> bool:
    """Yes or no among the parameters; `absent` when it says neither."""
    text = parameter(config, name).lower()
    return text in _TRUE if text in _TRUE | _FALSE else absent


def _kind(offer: Offer) -> Kind:
    """The adapter whose tensors the model has."""
    if offer.entry.ensemble_scheduling.step:
        return "ensemble"
    if "sampling_parameters" in offer.inputs:
        return "vllm"
    return "bls" if "text_input" in offer.inputs else "ids"


def _takes(config: ModelConfig | None, name: str) -> bool:
    return config is not None and any(each.name == name for each in config.input)
