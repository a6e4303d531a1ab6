"""Sharing of KV blocks between sequences that begin alike, as transformers does it, and what each one found.

Transformers keeps the full blocks of sequences that have left until a running one needs their room, and then
drops all of them, or lets a new one wait that finds too few for its first chunk, perhaps until all others
have ended. Here the least recently used ones make room, of one sequence the last first.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

Cache: TypeAlias = Any  # transformers' PagedAttentionCache

_AT_ONCE: Final = 64  # blocks dropped before the next try: fewer than a chunk needs


class SharedBlocks:
    """A watch on a cache. All of it runs in transformers' own thread, but for `pop`.

    Attributes:
        num_used: blocks that sequences refer to, each counted once.
    """

    def __init__(self, cache: Cache) -> None:
        """Start watching this cache, whose searches and allocations pass through here from now on."""
        self._cache = cache
        self.num_used = 0
        self._found: dict[str, int] = {}
        self._num_listed = 0
        self._search, cache.search_prefix_match = cache.search_prefix_match, self._noted
        self._store, cache.can_store_request_tokens = cache.can_store_request_tokens, self._stored
        self._free, cache.free_blocks = cache.free_blocks, self._freed

    def pop(self, name: str) -> int:
        """Return how many tokens of the sequence's prompt were in the cache, once."""
        return self._found.pop(name, 0)

    def _noted(self, name: str, ids: list[int]) -> int:
        found = int(self._search(name, ids))
        if found:
            self._found[name] = found
        return found

    def _stored(self, state: Any, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401  transformers' own
        while not self._store(state, *args, **kwargs):
            if not self._drop_oldest():
                return False
        self._count()
        return True

    def _freed(self, name: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  transformers' own
        """Free a sequence's blocks, and let its last ones be dropped before those that they follow."""
        before = {index: len(cached) for index, cached in self._unused()}
        self._free(name, *args, **kwargs)
        for index, cached in self._unused():
            for block in [*islice(reversed(cached), len(cached) - before[index])]:
                cached[block] = cached.pop(block)
        self._count()

    def _count(self) -> None:
        """Count the blocks in use, unless no sequence has got or left any."""
        tables = [
            table for each in self._cache.cache_allocators.values() for table in each.block_table.values()
        ]
        num_listed = sum(map(len, tables))
        if num_listed != self._num_listed:
            self._num_listed, self.num_used = num_listed, len(set().union(*tables))

    def _drop_oldest(self) -> bool:
        """Give some unused blocks back to the pool. Returns False if there are none."""
        dropped = False
        for allocator in self._cache.cache_allocators.values():
            ledger = allocator.ledger
            oldest = [*islice(ledger.cached_blocks, _AT_ONCE)]
            for block in oldest:
                del ledger.cached_blocks[block]
                del ledger.hash_to_block[ledger.block_to_hash.pop(block)]
            if oldest:
                self._cache.pool.free_blocks(allocator.index, oldest)
            dropped = dropped or bool(oldest)
        return dropped

    def _unused(self) -> Iterator[tuple[int, dict[int, None]]]:
        """Yield the blocks that no sequence refers to, by allocator, least recently used first."""
        for allocator in self._cache.cache_allocators.values():
            yield allocator.index, allocator.ledger.cached_blocks
