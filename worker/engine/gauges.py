"""One reading of an engine's gauges: requests inside and KV blocks in use."""

from dataclasses import dataclass

from jobs.diagnostics import Finding


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading of an engine's gauges.

    Some engines refresh them only while they iterate, so 0 can mean "not yet".

    Attributes:
        active_requests: requests in the executor, without those waiting beyond its batch.
        waiting_requests: requests that wait inside the engine, as those do that come while an iteration's
            budget for reading prompts is used up; None where it does not tell.
        num_preemptions: running requests that it has paused since it started, for want of blocks; None
            where it does not tell.
        max_requests: sequences that decode together.
        max_blocks: KV-cache blocks in the pool.
        used_blocks: KV-cache blocks in use.
        tokens_per_block: tokens in one block.
        blocks_per_sequence: blocks that every sequence takes besides those of its text; None where it does
            not tell.
        num_ranks: engines behind the server that share its load (data parallelism).
    """

    active_requests: int = 0
    max_requests: int = 0
    max_blocks: int = 0
    used_blocks: int = 0
    tokens_per_block: int = 0
    waiting_requests: int | None = None
    num_preemptions: int | None = None
    blocks_per_sequence: int | None = None
    num_ranks: int = 1

    @property
    def num_inside(self) -> int:
        """Number of requests that the engine has not ended, waiting ones included."""
        return self.active_requests + (self.waiting_requests or 0)

    @property
    def free_blocks(self) -> int:
        """Number of unused blocks."""
        return max(0, self.max_blocks - self.used_blocks)


def load_finding(gauges: Gauges, *, num_ours: int | None = None) -> Finding:
    """Report the load. A preemption proves that the engine got more than its blocks hold.

    Args:
        gauges: of the engine.
        num_ours: requests that Longbatch has there; None: not known here.
    """
    waiting = "whether any waits is not shown"
    if gauges.waiting_requests is not None:
        waiting = f"{gauges.waiting_requests} waiting inside"
    used = f"{gauges.used_blocks} of {gauges.max_blocks or '?'} blocks used"
    detail = f"{gauges.active_requests} requests inside, {waiting}, {used}"
    if gauges.num_preemptions:
        detail += f", {gauges.num_preemptions} preemptions since it started"
        advice = (
            "another client uses the engine too, or it has fewer blocks than Longbatch reserves: compare"
            " LONGBATCH_ENGINE__MAX_BLOCKS, __TOKENS_PER_BLOCK and __BLOCKS_PER_SEQUENCE with its log"
        )
        return Finding("metrics", "warning", detail, advice)
    if num_ours is not None and gauges.num_inside > num_ours:
        detail += f", of which {num_ours} are Longbatch's"
        return Finding("metrics", "warning", detail, "another client uses the engine too")
    return Finding("metrics", "ok", detail)
