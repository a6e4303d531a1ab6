"""The least time in which any policy, knowing every length, could serve a workload on an engine."""

from collections.abc import Sequence

from bench.simulation.engine_model import EngineModel, chunk_pairs
from bench.simulation.workloads import Spec


def lower_bound_s(model: EngineModel, specs: Sequence[Spec]) -> float:
    """Seconds: all prefill, all cache reads, and the weights once per iteration of the fewest iterations."""
    prefill = sum(
        model.prefill_s * spec.prompt_tokens + model.pair_s * chunk_pairs(spec.prompt_tokens, cached=0)
        for spec in specs
    )
    reads = model.kv_s * sum(kv_reads(spec, model.chunk) for spec in specs)
    return prefill + reads + model.weights_s * least_iterations(model, specs)


def least_iterations(model: EngineModel, specs: Sequence[Spec]) -> float:
    """The fewest iterations that hold the workload, whichever of its limits binds."""
    pool = model.capacity.max_tokens_in_pool
    steps = [num_steps(spec, model.chunk) for spec in specs]
    sized = [(spec.prompt_tokens, count) for spec, count in zip(specs, steps, strict=True)]
    return max(
        sum(steps) / model.capacity.max_batch_size,
        sum(kv_reads(spec, model.chunk) for spec in specs) / pool,
        # No two of these fit together, ...
        sum(count for prompt, count in sized if prompt > pool / 2),
        # ... nor one of the first beside any of the second, of which two fit.
        sum(count for prompt, count in sized if prompt > 2 * pool / 3)
        + sum(count for prompt, count in sized if pool / 3 < prompt <= 2 * pool / 3) / 2,
        sum(spec.prompt_tokens for spec in specs) / model.chunk,
        max(steps, default=0),
    )


def num_steps(spec: Spec, chunk: int) -> int:
    """Fewest iterations of one job: its chunks, the last of which yields a token, then one for each other."""
    return -(-spec.prompt_tokens // chunk) + spec.output_tokens - 1


def kv_reads(spec: Spec, chunk: int) -> int:
    """Fewest token-iterations in the cache: the short chunk first, then full ones, then a token more each."""
    prompt, decodes = spec.prompt_tokens, spec.output_tokens - 1
    prefill = sum(range(prompt, 0, -chunk))
    return prefill + decodes * prompt + decodes * (decodes + 1) // 2
