"""Sharing of KV blocks between sequences that begin alike, as transformers does it, and what each one found.

Transformers keeps the full blocks of sequences that have left until a running one needs their room. A new one
that finds too few free blocks for its first chunk would wait, perhaps until all others have ended.
"""

from typing import Any, TypeAlias

Cache: TypeAlias = Any  # transformers' PagedAttentionCache


class SharedBlocks:
    """A watch on a cache. All of it runs in transformers' own thread, but for `pop`."""

    def __init__(self, cache: Cache) -> None:
        """Start watching this cache, whose searches and allocations pass through here from now on."""
        self._cache = cache
        self._found: dict[str, int] = {}
        self._search, cache.search_prefix_match = cache.search_prefix_match, self._noted
        if hasattr(cache, "evict_cached_blocks"):  # earlier releases of transformers drop blocks one by one
            self._store, cache.can_store_request_tokens = cache.can_store_request_tokens, self._stored

    def pop(self, name: str) -> int:
        """Return how many tokens of the sequence's prompt were in the cache, once."""
        return self._found.pop(name, 0)

    def _noted(self, name: str, ids: list[int]) -> int:
        found = int(self._search(name, ids))
        if found:
            self._found[name] = found
        return found

    def _stored(self, state: Any, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401  transformers' own
        if self._store(state, *args, **kwargs):
            return True
        return bool(self._cache.evict_cached_blocks() and self._store(state, *args, **kwargs))
