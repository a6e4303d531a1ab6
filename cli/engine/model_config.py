"""A model's own config.json, read as dimensions and as what each of its layers keeps in the cache."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cli.engine import recurrent_state
from cli.engine.cache_layout import CacheLayout, LayerGroup, LayerKind
from cli.engine.errors import ProfileError
from cli.engine.hardware import ModelShape

_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = "model.safetensors"
# Attention and a gated MLP in every layer: their weights follow from the dimensions, to a thousandth.
_DENSE: Final = frozenset(
    """
    cohere2 exaone4 gemma2 gemma3_text llama ministral ministral3 mistral olmo3 phi3 qwen2 qwen3 smollm3
    """.split()  # noqa: SIM905  # read as one line of names
)
# Transformers' names, of several releases.
_KINDS: Final[Mapping[str, LayerKind | None]] = {
    "full_attention": "full",
    "attention": "full",
    "hybrid": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "mlp": None,  # layers without attention keep nothing
    "moe": None,
}

Config = dict[str, Any]


def read(path: Path) -> ModelShape:
    """Read a model's config.json; classes of transformers supply what it leaves out.

    Raises:
        ProfileError: it cannot be read, or the model keeps what is not counted; the message names it.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ProfileError(
            f"{path}: {error.strerror}; it is the config.json of a Hugging Face model"
        ) from error
    except ValueError as error:
        raise ProfileError(f"{path}: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise ProfileError(f"{path}: no model_type: it is not the config.json of a Hugging Face model")
    config = completed(content)
    layout = layout_of(config)
    heads = _size(config, "num_attention_heads")
    return ModelShape(
        layers=_size(config, "num_hidden_layers"),
        hidden=_size(config, "hidden_size"),
        intermediate=_size(config, "intermediate_size"),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=_attention_size(config),
        vocabulary=_size(config, "vocab_size"),
        max_positions=int(config.get("max_position_embeddings") or 0),
        tied=bool(config.get("tie_word_embeddings")),
        layout=layout,
        checkpoint_bytes=_checkpoint_bytes(path.parent, config),
        is_quantized=bool(content.get("quantization_config")),
        active_intermediate=_active_intermediate(config),
        model_type=str(content["model_type"]),
    )


def layout_of(config: Config) -> CacheLayout:
    """Group a model's layers by what they keep.

    Raises:
        ProfileError: a layer keeps what is not counted; the message names it.
    """
    found = Counter(_layers(config))
    if not found:
        raise ProfileError(f"{_name(config)}: config.json names no layers")
    layout = CacheLayout(
        tuple(_merged(group, number) for group, number in found.items() if group is not None)
    )
    if not any(each.token_values for each in layout.groups):
        raise ProfileError(
            f"{_name(config)}: no layer has a KV cache, so no pool of blocks limits it: it is not planned"
        )
    return layout


def completed(content: Config) -> Config:
    """Fill in what the model's class of transformers has by default, and take the text part.

    Raises:
        ProfileError: transformers does not know the model, or it is no decoder.
    """
    from transformers import AutoConfig

    name = str(content.get("model_type"))
    rest = {key: value for key, value in content.items() if key != "model_type"}
    try:
        config = AutoConfig.for_model(name, **rest).get_text_config(decoder=True)
        found: Config = config.to_dict()
    except Exception as error:  # a class refuses a config in many ways
        raise ProfileError(f"model_type {name} is not counted: {str(error).splitlines()[0]}") from error
    if found.get("is_encoder_decoder"):
        raise ProfileError(f"model_type {name} is an encoder and a decoder: it is not counted")
    types = getattr(config, "layers_block_type", None)
    return found if found.get("layer_types") or not types else found | {"layer_types": list(types)}


def _layers(config: Config) -> Iterator[LayerGroup | None]:
    """Yield what each layer keeps; None for a layer that keeps nothing."""
    types = _types(config)
    shared = int(config.get("num_kv_shared_layers") or 0)  # the last ones read what earlier ones keep
    own = {int(place): each for place, each in (config.get("per_layer_config") or {}).items()}
    for place, name in enumerate(types[: len(types) - shared]):
        if name not in _KINDS:
            raise ProfileError(f"{_name(config)}: layers of the type {name} are not counted")
        kind = _KINDS[name]
        layer = config | own.get(place, {})
        if kind == "recurrent":
            yield LayerGroup(kind=kind, layers=1, state_bytes=_state_bytes(layer))
        elif kind is None:
            yield None
        else:
            yield _attention(layer, kind)
        if name == "hybrid":  # attention and a recurrent state in one layer
            yield LayerGroup(kind="recurrent", layers=1, state_bytes=_state_bytes(layer))


def _types(config: Config) -> list[str]:
    types = config.get("layer_types")
    if types:
        return [str(each) for each in types]
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if "num_attention_heads" not in config:
        raise ProfileError(
            f"{_name(config)}: no attention, so no KV cache whose blocks limit it: it is not planned"
        )
    return ["sliding_attention" if window else "full_attention"] * _size(config, "num_hidden_layers")


def _attention(layer: Config, kind: LayerKind) -> LayerGroup:
    if layer.get("kv_lora_rank"):
        if kind != "full":
            raise ProfileError(f"{_name(layer)}: latent attention with a window is not counted")
        kept = int(layer["kv_lora_rank"]) + int(layer.get("qk_rope_head_dim") or 0)
        return LayerGroup(kind="latent", layers=1, token_values=kept)
    heads = int(layer.get("num_key_value_heads") or _size(layer, "num_attention_heads"))
    values = 2 * heads * _head_dim(layer)
    if kind == "full":
        return LayerGroup(kind=kind, layers=1, token_values=values)
    window = layer.get("attention_chunk_size" if kind == "chunked" else "sliding_window")
    if not window:
        raise ProfileError(f"{_name(layer)}: config.json has {kind} layers and no window")
    return LayerGroup(kind=kind, layers=1, token_values=values, window=int(window))


def _state_bytes(layer: Config) -> int:
    found = recurrent_state.state_bytes(layer)
    if found is None:
        raise ProfileError(f"{_name(layer)}: the recurrent state of this model type is not counted")
    return found


def _merged(group: LayerGroup, number: int) -> LayerGroup:
    return LayerGroup(
        kind=group.kind,
        layers=number,
        token_values=group.token_values,
        window=group.window,
        state_bytes=group.state_bytes,
    )


def _head_dim(config: Config) -> int:
    return int(config.get("head_dim") or _size(config, "hidden_size") // _size(config, "num_attention_heads"))


def _attention_size(config: Config) -> int:
    """Return the size of a head as operations count it; with latent attention, the mean of both products."""
    if config.get("kv_lora_rank"):
        return (
            sum(_size(config, each) for each in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")) // 2
        )
    return _head_dim(config)


def _active_intermediate(config: Config) -> int:
    """Return the width of the MLPs that one token passes: of a mixture, the chosen experts and the shared."""
    chosen = config.get("num_experts_per_tok") or config.get("num_experts_per_token")
    if not chosen:
        return _size(config, "intermediate_size")
    width = int(config.get("moe_intermediate_size") or _size(config, "intermediate_size"))
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    return width * (int(chosen) + int(config.get("n_shared_experts") or 0)) + shared


def _checkpoint_bytes(folder: Path, config: Config) -> int | None:
    """Read the size of the weights beside the config.

    Returns:
        None if there are none, and they follow from the dimensions.

    Raises:
        ProfileError: there are none, and they do not follow from the dimensions.
    """
    try:
        return int(json.loads((folder / _INDEX).read_text())["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if (folder / _WEIGHTS).is_file():
        return (folder / _WEIGHTS).stat().st_size
    if config.get("model_type") in _DENSE:
        return None
    raise ProfileError(
        f"{_name(config)}: the weights do not follow from config.json: put {_INDEX} of the model beside it"
    )


def _size(config: Config, name: str) -> int:
    if not isinstance(config.get(name), int):
        raise ProfileError(f"{_name(config)}: config.json has no number {name}")
    return int(config[name])


def _name(config: Config) -> str:
    return f"model_type {config.get('model_type', 'unknown')}"
