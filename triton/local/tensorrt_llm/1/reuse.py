"""The KV blocks that later requests may reuse, in counts of blocks.

Rules of TensorRT-LLM's `enable_kv_cache_reuse`, read in its sources and never run here:

- a full block is known by a chained hash: of its tokens and of all before them;
- a prompt's blocks become reusable once the whole prompt is processed, those of its output once it ends;
- at least the last token of a prompt is computed, so that there is something to sample from;
- a block that an active request refers to is never dropped; the others count as free and are dropped when
  their room is needed, the least recently used first, of one sequence the last first.

Not modelled: partly filled blocks, priorities, and a second tier in the host's memory.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

BlockKey = bytes

_KEY_BYTES = 16


def block_keys(
    ids: NDArray[np.int32], tokens_per_block: int, *, after: BlockKey = b""
) -> tuple[BlockKey, ...]:
    """Hash the full blocks of these tokens, each together with all tokens before it.

    Args:
        ids: token ids `[tokens]`.
        tokens_per_block: of the engine.
        after: key of the block before the first one.
    """
    keys = []
    for end in range(tokens_per_block, len(ids) + 1, tokens_per_block):
        block = ids[end - tokens_per_block : end].tobytes()
        after = hashlib.blake2b(after + block, digest_size=_KEY_BYTES).digest()
        keys.append(after)
    return tuple(keys)


class ReusableBlocks:
    """The blocks with a key: those that active requests refer to, and free ones. Not thread-safe.

    Attributes:
        num_reused: blocks that requests found here instead of computing them, since the start.
    """

    def __init__(self) -> None:
        self._references: dict[BlockKey, int] = {}
        self._free: dict[BlockKey, None] = {}  # least recently used first
        self.num_reused = 0

    @property
    def num_referenced(self) -> int:
        """Blocks that active requests refer to, each counted once."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Blocks that no request refers to."""
        return len(self._free)

    def found(self, keys: Sequence[BlockKey]) -> int:
        """Count the first of these blocks that are here without a gap."""
        return sum(1 for _ in takewhile(self._is_here, keys))

    def num_held(self, keys: Sequence[BlockKey]) -> int:
        """Count the first of these blocks that active requests refer to, without a gap."""
        return sum(1 for _ in takewhile(self._references.__contains__, keys))

    def reuse(self, keys: Iterable[BlockKey]) -> list[BlockKey]:
        """Refer to these blocks, all of which are here. Returns them for `release`."""
        held = []
        for key in keys:
            self._free.pop(key, None)
            self._references[key] = self._references.get(key, 0) + 1
            held.append(key)
        self.num_reused += len(held)
        return held

    def store(self, keys: Iterable[BlockKey]) -> list[BlockKey]:
        """Offer computed blocks for reuse and refer to them.

        Returns:
            Those for `release`: a block that another request stored first is not taken twice.
        """
        held = [key for key in keys if not self._is_here(key)]
        self._references |= dict.fromkeys(held, 1)
        return held

    def release(self, keys: Sequence[BlockKey]) -> None:
        """Stop referring to the blocks of one sequence, given from its first to its last."""
        for key in reversed(keys):
            self._references[key] -= 1
            if not self._references[key]:
                del self._references[key]
                self._free[key] = None

    def drop_beyond(self, num_blocks: int) -> None:
        """Drop free blocks, least recently used first, until at most this many are left."""
        while len(self._free) > num_blocks:
            del self._free[next(iter(self._free))]

    def _is_here(self, key: BlockKey) -> bool:
        return key in self._references or key in self._free
