"""One reading of an engine's gauges: requests inside and KV blocks in use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading of an engine's gauges.

    Some engines refresh them only while they iterate, so 0 can mean "not yet".

    Attributes:
        active_requests: requests in the executor, without those waiting beyond its batch.
        waiting_requests: requests that wait inside the engine; none while we count right.
        max_requests: sequences that decode together.
        max_blocks: KV-cache blocks in the pool.
        used_blocks: KV-cache blocks in use.
        tokens_per_block: tokens in one block.
    """

    active_requests: int = 0
    max_requests: int = 0
    max_blocks: int = 0
    used_blocks: int = 0
    tokens_per_block: int = 0
    waiting_requests: int = 0

    @property
    def free_blocks(self) -> int:
        """Number of unused blocks."""
        return max(0, self.max_blocks - self.used_blocks)
