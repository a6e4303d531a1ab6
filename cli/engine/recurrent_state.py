"""The state that a recurrent layer keeps for one sequence, whatever its length, by kind of model.

Shapes are those of the servers' caches: the matrix is counted in 32 bits, the most that they use, the last
inputs of the short convolution in 16.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cli.engine.config_numbers import number

_MATRIX_BYTES: Final = 4
_CONVOLUTION_BYTES: Final = 2

Layer = Mapping[str, Any]


def state_bytes(layer: Layer) -> int | None:
    """Compute the constant bytes that one recurrent layer keeps for one sequence.

    Returns:
        None if the model's type is not counted.
    """
    count = _COUNTS.get(str(layer.get("model_type")))
    return None if count is None else count(layer)


def _gated_delta(layer: Layer) -> int:
    """Count a matrix for each value head, and convolutions of queries, keys and values."""
    keys = number(layer, "linear_num_key_heads") * number(layer, "linear_key_head_dim")
    values = number(layer, "linear_num_value_heads") * number(layer, "linear_value_head_dim")
    matrix = values * number(layer, "linear_key_head_dim")
    return _total(matrix, 2 * keys + values, number(layer, "linear_conv_kernel_dim"))


def _kimi(layer: Layer) -> int:
    width = number(layer, "linear_num_heads") * number(layer, "linear_head_dim")
    return _total(
        width * number(layer, "linear_head_dim"), 3 * width, number(layer, "linear_conv_kernel_dim")
    )


def _mamba(layer: Layer) -> int:
    inner = number(layer, "mamba_expand") * number(layer, "hidden_size")
    return _total(inner * number(layer, "mamba_d_state"), inner, number(layer, "mamba_d_conv"))


def _mamba2(layer: Layer) -> int:
    inner = number(layer, "mamba_n_heads") * number(layer, "mamba_d_head")
    size = number(layer, "mamba_d_state")
    groups = number(layer, "mamba_n_groups")
    return _total(inner * size, inner + 2 * groups * size, number(layer, "mamba_d_conv"))


def _nemotron(layer: Layer) -> int:
    inner = number(layer, "mamba_num_heads") * number(layer, "mamba_head_dim")
    size = number(layer, "ssm_state_size")
    return _total(inner * size, inner + 2 * number(layer, "n_groups") * size, number(layer, "conv_kernel"))


def _total(matrix: int, channels: int, kernel: int) -> int:
    return matrix * _MATRIX_BYTES + channels * (kernel - 1) * _CONVOLUTION_BYTES


_COUNTS: Final[Mapping[str, Callable[[Layer], int]]] = {
    "qwen3_next": _gated_delta,
    "qwen3_5_text": _gated_delta,
    "qwen3_5_moe_text": _gated_delta,
    "kimi_linear": _kimi,
    "jamba": _mamba,
    "bamba": _mamba2,
    "falcon_h1": _mamba2,
    "granitemoehybrid": _mamba2,
    "nemotron_h": _nemotron,
}
