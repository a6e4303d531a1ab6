"""The least time in which any policy that knows every length could serve a workload on an engine."""

from collections.abc import Sequence

from bench.simulation.engine_model import EngineModel, chunk_pairs
from bench.simulation.workloads import Spec


def lower_bound_s(model: EngineModel, specs: Sequence[Spec]) -> float:
    """Add up the seconds of prefill, cache reads, and weights in fewest iterations."""
    prefill = sum(
        model.prefill_s * spec.prompt_tokens + model.pair_s * chunk_pairs(spec.prompt_tokens, cached=0)
        for spec in specs
    )
    reads = model.kv_s * sum(kv_reads(spec, model.chunk) for spec in specs)
    return prefill + reads + model.weights_s * least_iterations(model, specs)


def least_iterations(model: EngineModel, specs: Sequence[Spec]) -> float:
    """Return the fewest iterations that hold the workload, whichever limit binds."""
    pool = model.capacity.max_tokens_in_pool
    steps = [num_steps(spec, model.chunk) for spec in specs]
    sized = [(spec.prompt_tokens, count) for spec, count in zip(specs, steps, strict=True)]
    return max(
        sum(steps) / model.capacity.max_batch_size,
        sum(kv_reads(spec, model.chunk) for spec in specs) / pool,
        # No two of these fit together, ...
        sum(count for prompt, count in sized if prompt > pool / 2),
        # ... nor one of the first next to any of the second, of which two fit.
        sum(count for prompt, count in sized if prompt > 2 * pool / 3)
        + sum(count for prompt, count in sized if pool / 3 < prompt <= 2 * pool / 3) / 2,
        sum(spec.prompt_tokens for spec in specs) / model.chunk,
        max(steps, default=0),
    )


def num_steps(spec: Spec, chunk: int) -> int:
    """Count the fewest iterations of one job.

    Those are its chunks, the last of which yields a token, then one for each further token.
    """
    return -(-spec.prompt_tokens // chunk) + spec.output_tokens - 1


def kv_reads(spec: Spec, chunk: int) -> int:
    """Count the fewest token-iterations in the cache.

    The short chunk comes first, then the full ones, then each iteration holds one token more.
    """
    prompt, decodes = spec.prompt_tokens, spec.output_tokens - 1
    prefill = sum(range(prompt, 0, -chunk))
    return prefill + decodes * prompt + decodes * (decodes + 1) // 2
