"""The families of models that are counted: the types of their layers, and what their files leave out.

A published config.json may leave out the defaults of the model's class. Those here are transformers 5's, and
a test compares them: importing transformers takes seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cli.engine.config_numbers import Config, name_of, number, number_or
from cli.engine.errors import ProfileError

Layers = Callable[[Config], list[str]]

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_CHUNKED: Final = "chunked_attention"
_LINEAR: Final = "linear_attention"
_MOST_LAYERS: Final = 4096
# Nemotron-H's letters.
_LETTERS: Final = {"M": _LINEAR, "*": _FULL, "-": "mlp", "E": "moe"}


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one type.

    Attributes:
        layers: lists the types of the layers, where the file does not.
        defaults: values that files leave out.
        nested: values within another one of the file, by their names here.
        is_dense: attention and a gated MLP in every layer, whose weights follow from the dimensions, to a
            thousandth.
    """

    layers: Layers
    defaults: Mapping[str, Any] = field(default_factory=dict)
    nested: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    is_dense: bool = False


def family_of(config: Config) -> Family:
    """Find the family of a model.

    Raises:
        ProfileError: it is not counted.
    """
    found = FAMILIES.get(str(config.get("model_type")))
    if found is None:
        raise ProfileError(f"{name_of(config)} is not counted; those that are: {', '.join(sorted(FAMILIES))}")
    return found


def completed(content: Config) -> Config:
    """Take the text part of a config.json, and fill in what files of this family leave out.

    Raises:
        ProfileError: the model is not counted.
    """
    config, part = content, content.get("text_config")
    if isinstance(part, dict):
        tied = {name: content[name] for name in ("tie_word_embeddings",) if name in content}
        config = tied | {"model_type": f"{content.get('model_type')}_text"} | part
    if config.get("cross_attention_layers"):
        raise ProfileError(f"{name_of(config)}: layers that attend to images are not counted")
    family = family_of(config)
    _refuse_endless(config)
    inner = {name: _inner(config, *path) for name, path in family.nested.items()}
    given = {name: value for name, value in config.items() if value is not None or name == "sliding_window"}
    found = {**family.defaults, **{name: value for name, value in inner.items() if value}, **given}
    if not found.get("layer_types"):
        found["layer_types"] = family.layers(found)
    return found


def _inner(config: Config, group: str, name: str) -> object:
    found = config.get(group)
    return found.get(name) if isinstance(found, dict) else None


def _refuse_endless(config: Config) -> None:
    """Refuse a number of layers that nobody could list."""
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        raise ProfileError(f"{name_of(config)}: num_hidden_layers of config.json cannot be {layers}")


def _all_full(config: Config) -> list[str]:
    return [_FULL] * number(config, "num_hidden_layers")


def _all_sliding(config: Config) -> list[str]:
    """Every layer has the window, if there is one."""
    has_window = config.get("sliding_window") and config.get("use_sliding_window", True)
    return [_SLIDING if has_window else _FULL] * number(config, "num_hidden_layers")


def _last_sliding(config: Config) -> list[str]:
    """Qwen's rule: off unless it is turned on, and then from a layer on."""
    num_layers = number(config, "num_hidden_layers")
    if not (config.get("use_sliding_window") and config.get("sliding_window")):
        return [_FULL] * num_layers
    first = number_or(config, "max_window_layers", 0)
    return [_FULL if place < first else _SLIDING for place in range(num_layers)]


def _every_nth(config: Config) -> list[str]:
    """Every nth layer keeps all tokens, the others have a window."""
    pattern = config.get("sliding_window_pattern") if config.get("sliding_window") else None
    num_layers = number(config, "num_hidden_layers")
    if not pattern:
        return [_FULL] * num_layers
    if isinstance(pattern, str):
        return [_SLIDING if pattern[place % len(pattern)] == "L" else _FULL for place in range(num_layers)]
    every = number(config, "sliding_window_pattern")
    return [_SLIDING if (place + 1) % every else _FULL for place in range(num_layers)]


def _gemma4(config: Config) -> list[str]:
    """As every nth; the last layer always keeps all tokens."""
    return [*_every_nth(config)[:-1], _FULL]


def _llama4(config: Config) -> list[str]:
    """Layers with positions attend within a chunk."""
    num_layers, every = number(config, "num_hidden_layers"), number(config, "no_rope_layer_interval")
    with_positions = config.get("no_rope_layers") or [(place + 1) % every for place in range(num_layers)]
    if not isinstance(with_positions, list):
        raise ProfileError(f"{name_of(config)}: no_rope_layers of config.json is no list")
    return [_CHUNKED if each else _FULL for each in with_positions]


def _linear_except_nth(config: Config) -> list[str]:
    every = number(config, "full_attention_interval")
    return [_LINEAR if (place + 1) % every else _FULL for place in range(number(config, "num_hidden_layers"))]


def _jamba(config: Config) -> list[str]:
    period, offset = number(config, "attn_layer_period"), number_or(config, "attn_layer_offset", 0)
    num_layers = number(config, "num_hidden_layers")
    return [_FULL if place % period == offset else _LINEAR for place in range(num_layers)]


def _bamba(config: Config) -> list[str]:
    places = config.get("attn_layer_indices")
    if not isinstance(places, list):
        raise ProfileError(f"{name_of(config)}: config.json has neither layer_types nor attn_layer_indices")
    return [_FULL if place in places else _LINEAR for place in range(number(config, "num_hidden_layers"))]


def _all_hybrid(config: Config) -> list[str]:
    return ["hybrid"] * number(config, "num_hidden_layers")


def _letters(config: Config) -> list[str]:
    named = config.get("layers_block_type")
    if isinstance(named, list):
        return [str(each) for each in named]
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        raise ProfileError(f"{name_of(config)}: config.json has no hybrid_override_pattern")
    return [_LETTERS.get(each, each) for each in pattern]


def _kimi_linear(config: Config) -> list[str]:
    """Read the layers that keep every token; the file counts from 1."""
    places = _inner(config, "linear_attn_config", "full_attn_layers")
    if not isinstance(places, list):
        raise ProfileError(f"{name_of(config)}: linear_attn_config of config.json has no full_attn_layers")
    num_layers = number(config, "num_hidden_layers")
    return [_FULL if place + 1 in places else _LINEAR for place in range(num_layers)]


def _indexed(config: Config) -> list[str]:
    return ["indexed_attention"] * number(config, "num_hidden_layers")


_PLAIN: Final = Family(_all_full)
_PLAIN_128: Final = Family(_all_full, {"head_dim": 128})
_TIED: Final = {"tie_word_embeddings": True}
_MISTRAL: Final = Family(_all_sliding, is_dense=True)
_LATENT: Final = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
_GEMMA2: Final = _TIED | {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
_GEMMA3: Final = _GEMMA2 | {"vocab_size": 262_208, "max_position_embeddings": 131_072}
_GEMMA4: Final = _GEMMA3 | {"vocab_size": 262_144, "sliding_window": 512, "global_head_dim": 512}
_EVERY_FOURTH: Final = {"sliding_window_pattern": 4}
_DELTA: Final = {
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "head_dim": 256,
}
_DELTA_MIXTURE: Final = Family(_linear_except_nth, _DELTA | {"shared_expert_intermediate_size": 512})
_MAMBA: Final = {"mamba_d_conv": 4, "mamba_expand": 2}

FAMILIES: Final[Mapping[str, Family]] = {
    # Every layer keeps every token.
    "llama": Family(_all_full, is_dense=True),
    "smollm3": Family(_all_full, _TIED, is_dense=True),
    "gemma": Family(_all_full, _TIED | {"head_dim": 256}),
    "cohere": Family(_all_full, _TIED),
    "ernie4_5": Family(_all_full, _TIED | {"head_dim": 128}),
    "ernie4_5_moe": Family(_all_full, _TIED),
    **dict.fromkeys(("glm4", "seed_oss", "nemotron", "minimax_m2"), _PLAIN_128),
    **dict.fromkeys(("olmo2", "granite", "granitemoe", "glm4_moe", "olmoe", "hunyuan_v1_dense"), _PLAIN),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), Family(_all_full, _LATENT)),
    # Some or all layers have a window, or attend within chunks.
    **dict.fromkeys(("mistral", "ministral", "ministral3", "phi3"), _MISTRAL),
    **dict.fromkeys(("mixtral", "qwen3_moe"), Family(_all_sliding)),
    "starcoder2": Family(_all_sliding, _TIED),
    "qwen2": Family(_last_sliding, is_dense=True),
    "qwen2_moe": Family(_last_sliding),
    "qwen3": Family(_last_sliding, {"head_dim": 128}, is_dense=True),
    "gpt_oss": Family(
        _every_nth,
        {
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
        },
    ),
    "gemma2": Family(_every_nth, _GEMMA2 | {"sliding_window_pattern": 2}, is_dense=True),
    "gemma3_text": Family(_every_nth, _GEMMA3 | {"sliding_window_pattern": 6}, is_dense=True),
    "gemma4_text": Family(_gemma4, _GEMMA4 | {"sliding_window_pattern": 6}),
    "cohere2": Family(_every_nth, _TIED | _EVERY_FOURTH | {"sliding_window": 4096}, is_dense=True),
    "olmo3": Family(_every_nth, _EVERY_FOURTH | {"sliding_window": 4096}, is_dense=True),
    "exaone4": Family(_every_nth, _EVERY_FOURTH, is_dense=True),
    "llama4_text": Family(
        _llama4,
        {
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 8192,
            "no_rope_layer_interval": 4,
        },
    ),
    "deepseek_v32": Family(_indexed, _LATENT | {"index_head_dim": 128}),
    # Some or all layers keep a state.
    "qwen3_5_text": Family(_linear_except_nth, _DELTA),
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _DELTA_MIXTURE),
    "kimi_linear": Family(
        _kimi_linear,
        _LATENT,
        nested={
            "linear_num_heads": ("linear_attn_config", "num_heads"),
            "linear_head_dim": ("linear_attn_config", "head_dim"),
            "linear_conv_kernel_dim": ("linear_attn_config", "short_conv_kernel_size"),
        },
    ),
    "jamba": Family(_jamba, _MAMBA | {"mamba_d_state": 16, "attn_layer_period": 8, "attn_layer_offset": 4}),
    "bamba": Family(_bamba, _MAMBA),
    "granitemoehybrid": Family(_bamba, _MAMBA),
    "falcon_h1": Family(_all_hybrid, _MAMBA),
    "nemotron_h": Family(
        _letters,
        {
            "num_key_value_heads": 8,
            "head_dim": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
        },
    ),
}
