"""A model's own config.json, read as dimensions and as what each of its layers keeps in the cache."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from cli.engine import recurrent_state
from cli.engine.cache_layout import CacheLayout, LayerGroup, LayerKind
from cli.engine.config_numbers import Config, name_of, number, number_or
from cli.engine.errors import ProfileError
from cli.engine.hardware import ModelShape
from cli.engine.model_families import completed, family_of

_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = "model.safetensors"
# Transformers' names, of several releases.
_KINDS: Final[Mapping[str, LayerKind | None]] = {
    "full_attention": "full",
    "attention": "full",
    "hybrid": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "mlp": None,  # layers without attention keep nothing
    "moe": None,
}

_SCALED_TOGETHER: Final = 128
_SCALE_BYTES: Final = 4
# Classes of these tasks write text.
_WRITERS: Final = ("CausalLM", "ConditionalGeneration", "LMHead")
_MOST_BYTES: Final = 2**60  # of weights


def read(path: Path) -> ModelShape:
    """Read a model's config.json.

    Raises:
        ProfileError: it cannot be read, or the model keeps what is not counted; the message names it.
    """
    content = _read(path)
    config = completed(content)
    layout = layout_of(config)
    heads = number(config, "num_attention_heads")
    return ModelShape(
        layers=len(_types(config)),
        hidden=number(config, "hidden_size"),
        intermediate=number_or(config, "intermediate_size", 0) or number(config, "moe_intermediate_size"),
        heads=heads,
        kv_heads=number_or(config, "num_key_value_heads", heads),
        head_dim=_attention_size(config),
        vocabulary=number(config, "vocab_size"),
        max_positions=number_or(config, "max_position_embeddings", 0),
        tied=bool(config.get("tie_word_embeddings")),
        layout=layout,
        checkpoint_bytes=_checkpoint_bytes(path.parent, config),
        is_quantized=bool(content.get("quantization_config")),
        active_intermediate=_active_intermediate(config),
        model_type=str(content["model_type"]),
    )


def read_layout(path: Path) -> CacheLayout:
    """Read from a model's config.json what its layers keep.

    Raises:
        ProfileError: it cannot be read, or a layer keeps what is not counted.
    """
    return layout_of(completed(_read(path)))


def _read(path: Path) -> Config:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ProfileError(
            f"{path}: {error.strerror}; it is the config.json of a Hugging Face model"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise ProfileError(f"{path}: no model_type: it is not the config.json of a Hugging Face model")
    if not _generates(content):
        raise ProfileError(f"{name_of(content)}: its class is no decoder that writes text: it is not counted")
    return content


def layout_of(config: Config) -> CacheLayout:
    """Group a model's layers by what they keep.

    Raises:
        ProfileError: a layer keeps what is not counted; the message names it.
    """
    found = Counter(_layers(config))
    if not found:
        raise ProfileError(f"{name_of(config)}: config.json names no layers")
    layout = CacheLayout(
        tuple(replace(group, layers=number) for group, number in found.items() if group is not None)
    )
    if not any(each.token_values for each in layout.groups):
        raise ProfileError(
            f"{name_of(config)}: no layer has a KV cache, so no pool of blocks limits it: it is not planned"
        )
    return layout


def _generates(content: Config) -> bool:
    """Return True if the classes that the file names write text, or if it names none."""
    classes = content.get("architectures")
    if not isinstance(classes, list) or not classes:
        return True
    return any(task in str(each) for each in classes for task in _WRITERS)


def _layers(config: Config) -> Iterator[LayerGroup | None]:
    """Yield what each layer keeps; None for a layer that keeps nothing."""
    types = _types(config)
    shared = number_or(config, "num_kv_shared_layers", 0)  # the last ones read what earlier ones keep
    if shared >= len(types) > 0:
        raise ProfileError(f"{name_of(config)}: num_kv_shared_layers leaves no layer that keeps anything")
    own = _own(config)
    for place, name in enumerate(types[: len(types) - shared]):
        if name not in _KINDS:
            raise ProfileError(f"{name_of(config)}: layers of the type {name} are not counted")
        kind = _KINDS[name]
        layer = config | own.get(place, {})
        if kind == "recurrent":
            yield LayerGroup(kind=kind, layers=1, state_bytes=_state_bytes(layer))
        elif kind is None:
            yield None
        else:
            yield _attention(layer, kind, is_indexed=name == "indexed_attention")
        if name == "hybrid":  # attention and a recurrent state in one layer
            yield LayerGroup(kind="recurrent", layers=1, state_bytes=_state_bytes(layer))


def _own(config: Config) -> dict[int, Config]:
    """Read what single layers have of their own, by their place."""
    if "global_head_dim" in config and not config.get("per_layer_config"):  # Gemma 4's full layers
        own = {"head_dim": config["global_head_dim"]}
        if config.get("attention_k_eq_v") and config.get("num_global_key_value_heads"):
            own["num_key_value_heads"] = config["num_global_key_value_heads"]
        return {place: own for place, name in enumerate(_types(config)) if name == "full_attention"}
    try:
        return {int(place): dict(each) for place, each in (config.get("per_layer_config") or {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ProfileError(f"{name_of(config)}: per_layer_config of config.json is not understood") from error


def _types(config: Config) -> list[str]:
    """List the types of the layers."""
    types = config["layer_types"]
    if not isinstance(types, list) or len(types) != config.get("num_hidden_layers", len(types)):
        raise ProfileError(
            f"{name_of(config)}: layer_types of config.json does not name each of its num_hidden_layers"
        )
    return [str(each) for each in types]


def _attention(layer: Config, kind: LayerKind, *, is_indexed: bool) -> LayerGroup:
    if layer.get("kv_lora_rank"):
        if kind != "full":
            raise ProfileError(f"{name_of(layer)}: latent attention with a window is not counted")
        kept = number(layer, "kv_lora_rank") + number_or(layer, "qk_rope_head_dim", 0)
        return LayerGroup(
            kind="latent", layers=1, token_values=kept, index_bytes=_index_bytes(layer) if is_indexed else 0
        )
    heads = number_or(layer, "num_key_value_heads", number(layer, "num_attention_heads"))
    values = 2 * heads * _head_dim(layer)
    if kind == "full":
        return LayerGroup(kind=kind, layers=1, token_values=values)
    window = number_or(layer, "attention_chunk_size" if kind == "chunked" else "sliding_window", 0)
    if not window:
        raise ProfileError(f"{name_of(layer)}: config.json has {kind} layers and no window")
    return LayerGroup(kind=kind, layers=1, token_values=values, window=window)


def _index_bytes(layer: Config) -> int:
    """Count the key of DeepSeek's indexer for one token: a byte for each value, a scale for each 128."""
    size = number(layer, "index_head_dim")
    return size + size // _SCALED_TOGETHER * _SCALE_BYTES


def _state_bytes(layer: Config) -> int:
    found = recurrent_state.state_bytes(layer)
    if found is None:
        raise ProfileError(f"{name_of(layer)}: the recurrent state of this model type is not counted")
    return found


def _head_dim(config: Config) -> int:
    return number_or(config, "head_dim", 0) or (
        number(config, "hidden_size") // number(config, "num_attention_heads")
    )


def _attention_size(config: Config) -> int:
    """Return the size of a head as operations count it; with latent attention, the mean of both products."""
    if config.get("kv_lora_rank"):
        return (
            sum(number(config, each) for each in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")) // 2
        )
    return _head_dim(config)


def _active_intermediate(config: Config) -> int:
    """Return the width of the MLPs that one token passes: of a mixture, the chosen experts and the shared."""
    chosen = number_or(config, "num_experts_per_tok", 0) or number_or(config, "num_experts_per_token", 0)
    if not chosen:
        return number(config, "intermediate_size")
    width = number_or(config, "moe_intermediate_size", 0) or number(config, "intermediate_size")
    shared = number_or(config, "shared_expert_intermediate_size", 0)
    return width * (chosen + number_or(config, "n_shared_experts", 0)) + shared


def _checkpoint_bytes(folder: Path, config: Config) -> int | None:
    """Read the size of the weights beside the config.

    Returns:
        None if there are none, and they follow from the dimensions.

    Raises:
        ProfileError: there are none, and they do not follow from the dimensions.
    """
    try:
        found = json.loads((folder / _INDEX).read_text())["metadata"]["total_size"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        found = None
    # Written as a float by some tools; what is no size counts as none.
    if isinstance(found, int | float) and 1 < found < _MOST_BYTES:
        return int(found)
    if (folder / _WEIGHTS).is_file():
        return (folder / _WEIGHTS).stat().st_size
    if family_of(config).is_dense:
        return None
    raise ProfileError(
        f"{name_of(config)}: the weights do not follow from config.json: put {_INDEX} of the model beside it"
    )
