"""The blocks that vLLM takes for a sequence besides those of its text, computed from a model's layers.

vLLM has one pool of blocks for all layers. It divides the layers into groups of equal size and of one kind;
each group takes blocks of its own for a sequence. The first group of layers that keep every token takes the
blocks of the text, and all others are the constant.

Source: vLLM 0.24 to 0.32, `v1/core/kv_cache_utils.py` and `v1/kv_cache_interface.py`. A running server
reports its own number, which depends on its options too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from cli.engine.cache_layout import CacheLayout, LayerGroup
from cli.engine.hardware import GIB, Gpu

TOKENS_PER_BLOCK: Final = 16  # vLLM's default on GPUs
# With asynchronous scheduling, the default, the next iteration is prepared while one runs; before 0.26 its
# tokens were not counted.
BATCHES_IN_FLIGHT: Final = 2
# Below this ratio of layers of two kinds, groups are as large as the larger kind.
_PADDED_BELOW: Final = 1.5
# With prefix caching, the default, a recurrent layer keeps the state before its last block too.
_STATES: Final = 2
# From this memory on, A100 apart, vLLM's default iterations are larger.
_LARGE: Final = 70 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSequence:
    """What one sequence takes of vLLM's pool besides the blocks of its text.

    Attributes:
        tokens_per_block: vLLM makes blocks larger until one holds a recurrent layer's state.
        max_num_batched_tokens: tokens of an iteration, as assumed.
        blocks_per_sequence: blocks, with two batches in flight.
        blocks_with_one_batch: the same without asynchronous scheduling, or before vLLM 0.26.
        kept_blocks: those of them that it keeps once its prompt is read.
    """

    tokens_per_block: int
    max_num_batched_tokens: int
    blocks_per_sequence: int
    blocks_with_one_batch: int
    kept_blocks: int


def sequence_of(
    layout: CacheLayout, *, width: int, longest: int, max_num_batched_tokens: int
) -> VllmSequence:
    """Compute what a sequence takes.

    Args:
        layout: the model's layers.
        width: bytes of one number in the cache.
        longest: tokens of the longest sequence, vLLM's --max-model-len.
        max_num_batched_tokens: tokens of an iteration, vLLM's --max-num-batched-tokens.
    """
    size, largest = _tokens_per_block(layout, width), _largest_token(layout, width)

    def blocks(in_flight: int) -> int:
        return sum(
            # A block has as many bytes in every group, so it holds more of smaller keys and values.
            _blocks(
                each,
                size * (largest // (each.layer_bytes(width) or largest)),
                longest=longest,
                in_flight=in_flight,
            )
            for each in _constant_groups(layout)
        )

    return VllmSequence(
        tokens_per_block=size,
        max_num_batched_tokens=max_num_batched_tokens,
        blocks_per_sequence=blocks(BATCHES_IN_FLIGHT * max_num_batched_tokens),
        blocks_with_one_batch=blocks(max_num_batched_tokens),
        kept_blocks=blocks(BATCHES_IN_FLIGHT),  # a token in each
    )


def default_batched_tokens(gpu: Gpu) -> int:
    """Return vLLM's default of --max-num-batched-tokens for `vllm serve` on a GPU."""
    return 8192 if gpu.memory_bytes >= _LARGE and "A100" not in gpu.title else 2048


def _tokens_per_block(layout: CacheLayout, width: int) -> int:
    """Compute the tokens of a block: those whose keys and values take as much as the largest state."""
    states = max(each.state_bytes for each in layout.groups)
    return max(1, ceil(states / _largest_token(layout, width) / TOKENS_PER_BLOCK)) * TOKENS_PER_BLOCK


def _largest_token(layout: CacheLayout, width: int) -> int:
    """Compute the bytes that a layer keeps for one token, of the kind that keeps most."""
    return max(each.layer_bytes(width) for each in layout.groups)


def _constant_groups(layout: CacheLayout) -> Iterator[LayerGroup]:
    """Yield a kind of layers once for each of vLLM's groups of it, without the group of the text."""
    counts = [each.layers for each in layout.groups]
    largest = max(counts)
    size = largest if largest < min(counts) * _PADDED_BELOW else min(counts)
    is_text = True
    for each in layout.groups:
        for _ in range(ceil(each.layers / size)):
            if each.window is None and each.kind != "recurrent" and is_text:
                is_text = False
            else:
                yield each


def _blocks(group: LayerGroup, size: int, *, longest: int, in_flight: int) -> int:
    """Compute the blocks that one of vLLM's groups takes for a sequence at most."""
    match group.kind:
        case "recurrent":
            return _STATES
        case "sliding":
            # The window may begin within a block.
            return ceil(min((group.window or 0) - 1 + in_flight, longest) / size) + 1
        case "chunked":
            return ceil(min((group.window or 0) + in_flight, longest) / size)
        case _:
            return ceil(longest / size)
