"""What fits into an engine, and how fast it can be at best, computed from a profile without a GPU."""

from dataclasses import dataclass
from math import ceil
from typing import Final

from cli.engine import drivers, pitfalls
from cli.engine.cache_layout import LayerGroup
from cli.engine.hardware import GIB
from cli.engine.profile import Profile
from cli.engine.profile_groups import EngineGroup
from cli.engine.vllm_blocks import VllmSequence, default_batched_tokens, sequence_of

# On top of weights and cache: CUDA context, kernels, cuBLAS and decoder workspaces. With the activations of a
# chunk of 4096 tokens (0.5 GiB) this makes the 3 GiB allowed for an 8B model: an estimate.
_FIXED_RUNTIME_BYTES: Final = int(2.5 * GIB)
_BYTES: Final = {"float16": 2, "bfloat16": 2, "int8": 1, "fp8": 1}
# AWQ keeps a 16-bit scale for each group of 128 weights.
_WEIGHT_BYTES: Final = _BYTES | {"int4_awq": 0.5 + 2 / 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Lower bounds of times and upper bounds of rates, by the roofline of the GPUs.

    Attributes:
        full_prefill_seconds: prefill of the longest prompt.
        typical_prefill_seconds: prefill of a typical prompt.
        full_decode_tokens_per_second: one sequence alone, with the longest prompt.
        typical_decode_tokens_per_second: a full batch, each sequence with a typical prompt.
    """

    full_prefill_seconds: float
    typical_prefill_seconds: float
    full_decode_tokens_per_second: float
    typical_decode_tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The capacity of an engine. Sizes are sums over its GPUs unless noted; a GiB is 2**30 bytes.

    Attributes:
        weights: their number format.
        kv_bytes_per_token: in the cache, in layers that keep every token; of Llama 2 · layers · KV heads ·
            head size · bytes.
        kv_bytes_per_sequence: on top, whatever its length: full windows and recurrent states.
        blocks_per_sequence: the same in blocks of the pool, as if one pool held all layers.
        vllm: what a sequence takes of vLLM's pool, which reserves more: what it reads at once, too.
        kv_layers: the model's layers by what they keep.
        pool_tokens: size of the whole cache, rounded down to blocks.
        full_prompt_gib: cache for the longest prompt.
        runtime_gib: memory for everything except weights and cache.
        total_gib: weights, cache and runtime.
        gpu_gib: what one GPU needs of its `gpu_memory_gib`.
        largest_pool_tokens: the largest pool that fits into memory.
        full_length_jobs: jobs with the longest prompt that run at once.
        typical_jobs: typical jobs that run at once.
        binds: the limit that keeps more jobs from running, for long and for typical ones.
        driver: oldest NVIDIA driver that the image runs on; None if that is not known.
        warnings: pitfalls of this profile.
    """

    profile: str
    weights: str
    repository: str
    kv_bytes_per_token: int
    kv_bytes_per_sequence: int
    blocks_per_sequence: int
    vllm: VllmSequence
    kv_layers: tuple[LayerGroup, ...]
    pool_tokens: int
    pool_blocks: int
    tokens_per_block: int
    pool_gib: float
    full_prompt_gib: float
    weights_gib: float
    runtime_gib: float
    total_gib: float
    gpu_gib: float
    gpu_memory_gib: float
    gpu_count: int
    largest_pool_tokens: int
    full_length_jobs: int
    typical_jobs: int
    binds: dict[str, str]
    pace: Throughput
    driver: str | None
    warnings: tuple[str, ...]


def plan(profile: Profile, *, max_num_batched_tokens: int | None = None) -> CapacityPlan:
    """Compute the capacity, pace and pitfalls of the profile's engine.

    Args:
        profile: of the engine.
        max_num_batched_tokens: of vLLM, were it to serve the model; None: its default on this GPU.
    """
    engine, work = profile.engine, profile.workload
    per_token = kv_bytes_per_token(profile)
    blocks = engine.kv_cache_tokens // engine.tokens_per_block
    weights = weight_bytes(profile)
    runtime = runtime_bytes(profile) * profile.gpu.count
    pool = blocks * block_bytes(profile)
    total = weights + runtime + pool
    full = job_blocks(profile, engine.max_input_len + work.full_output_tokens)
    typical = job_blocks(profile, work.typical_prompt_tokens + work.typical_output_tokens)
    largest = largest_pool_tokens(profile)
    return CapacityPlan(
        profile=profile.name,
        weights=profile.precision.weights,
        repository=profile.model.repository,
        kv_bytes_per_token=per_token,
        kv_bytes_per_sequence=kv_bytes_per_sequence(profile),
        blocks_per_sequence=blocks_per_sequence(profile),
        vllm=sequence_of(
            profile.shape.cache,
            width=_BYTES[profile.precision.kv_cache],
            longest=engine.max_seq_len,
            max_num_batched_tokens=max_num_batched_tokens or default_batched_tokens(profile.hardware),
        ),
        kv_layers=profile.shape.cache.groups,
        pool_tokens=blocks * engine.tokens_per_block,
        pool_blocks=blocks,
        tokens_per_block=engine.tokens_per_block,
        pool_gib=_gib(pool),
        full_prompt_gib=_gib(engine.max_input_len * per_token + kv_bytes_per_sequence(profile)),
        weights_gib=_gib(weights),
        runtime_gib=_gib(runtime),
        total_gib=_gib(total),
        gpu_gib=_gib(total / profile.gpu.count),
        gpu_memory_gib=_gib(profile.hardware.memory_bytes),
        gpu_count=profile.gpu.count,
        largest_pool_tokens=largest,
        full_length_jobs=min(engine.max_batch_size, blocks // full),
        typical_jobs=min(engine.max_batch_size, blocks // typical),
        binds={"full_length": _binds(engine, blocks, full), "typical": _binds(engine, blocks, typical)},
        pace=_throughput(profile),
        driver=drivers.required(profile.image.name),
        warnings=pitfalls.find(
            profile,
            pool_blocks=blocks,
            typical_blocks=typical,
            longest_blocks=job_blocks(profile, engine.max_seq_len),
            largest_pool_tokens=largest,
        ),
    )


def kv_bytes_per_token(profile: Profile) -> int:
    """Compute the cache bytes of one more token, in all layers that keep every token.

    Based on the number of KV heads; the hidden size would give four times as much.
    """
    width = _BYTES[profile.precision.kv_cache]
    return profile.shape.cache.token_bytes(width, gpus=profile.gpu.tensor)


def kv_bytes_per_sequence(profile: Profile) -> int:
    """Compute the cache bytes of a sequence that do not grow with it: full windows, recurrent states."""
    return profile.shape.cache.sequence_bytes(_BYTES[profile.precision.kv_cache], profile.engine.max_seq_len)


def block_bytes(profile: Profile) -> int:
    """Compute the bytes of a block of the pool; of layers with windows if no layer keeps every token."""
    windows = profile.shape.cache.window_token_bytes(_BYTES[profile.precision.kv_cache])
    return profile.engine.tokens_per_block * (kv_bytes_per_token(profile) or windows)


def blocks_per_sequence(profile: Profile) -> int:
    """Compute the blocks that a sequence takes on top of those that grow with it."""
    return ceil(kv_bytes_per_sequence(profile) / block_bytes(profile))


def weight_bytes(profile: Profile) -> int:
    """Compute the bytes of all weights; embedding and output projection keep 16 bits."""
    published = profile.shape.checkpoint_bytes
    width = _WEIGHT_BYTES[profile.precision.weights]
    if published is not None and (profile.shape.is_quantized or width == 2):
        return published
    layers = int(profile.shape.layer_parameters * width)
    return layers + profile.shape.table_parameters * _BYTES[profile.precision.dtype]


def runtime_bytes(profile: Profile) -> int:
    """Compute the bytes that one GPU needs on top of weights and cache."""
    return _FIXED_RUNTIME_BYTES + profile.engine.max_num_tokens * profile.shape.activations_per_token * 2


def largest_pool_tokens(profile: Profile) -> int:
    """Compute the largest pool that the executor would reserve.

    It takes a fraction of the memory that the weights leave free on each GPU.
    """
    free = profile.hardware.memory_bytes - weight_bytes(profile) / profile.gpu.count - runtime_bytes(profile)
    share = free * profile.engine.free_gpu_memory_fraction * profile.gpu.count
    return max(0, int(share // block_bytes(profile))) * profile.engine.tokens_per_block


def job_blocks(profile: Profile, tokens: int) -> int:
    """Compute the blocks of a job: those of prompt and output, and the constant of its sequence."""
    growing = blocks_of(profile.engine, tokens) if kv_bytes_per_token(profile) else 0
    return growing + blocks_per_sequence(profile)


def blocks_of(engine: EngineGroup, tokens: int) -> int:
    """Compute the blocks that guaranteed_no_evict reserves for prompt and output."""
    return ceil(tokens / engine.tokens_per_block)


def _binds(engine: EngineGroup, pool_blocks: int, job_blocks: int) -> str:
    in_pool = pool_blocks // job_blocks
    if in_pool < engine.max_batch_size:
        return f"the KV pool: {in_pool} of {engine.max_batch_size} slots"
    return f"the batch: {engine.max_batch_size} slots, the pool would hold {in_pool}"


def _throughput(profile: Profile) -> Throughput:
    work = profile.workload
    batch = profile.engine.max_batch_size
    typical = work.typical_prompt_tokens + work.typical_output_tokens // 2
    return Throughput(
        full_prefill_seconds=round(_prefill_seconds(profile, profile.engine.max_input_len), 2),
        typical_prefill_seconds=round(_prefill_seconds(profile, work.typical_prompt_tokens), 2),
        full_decode_tokens_per_second=round(
            1 / _step_seconds(profile, sequences=1, tokens=profile.engine.max_input_len), 1
        ),
        typical_decode_tokens_per_second=round(
            batch / _step_seconds(profile, sequences=batch, tokens=batch * typical), 1
        ),
    )


def _prefill_seconds(profile: Profile, tokens: int) -> float:
    """Estimate prefill: matrix products, and attention to all earlier tokens."""
    shape = profile.shape
    products = 2 * shape.active_parameters * tokens
    # Of a full layer half of the square: each token attends to the earlier ones.
    attention = 4 * shape.heads * shape.head_dim * shape.cache.attended_pairs(tokens)
    speed = profile.hardware.flops * profile.hardware.reached_flops * profile.gpu.count
    # FP8 doubles the products, not the attention, whose inputs stay in 16 bits with a 16-bit cache.
    return (products / (2 if profile.precision.weights == "fp8" else 1) + attention) / speed


def _step_seconds(profile: Profile, *, sequences: int, tokens: int) -> float:
    """Estimate one decoding step, which reads each weight that is used and the cache in use once."""
    shape = profile.shape
    weights = weight_bytes(profile)
    # A small model that is published in a few bits may weigh less than its tables would in 16.
    tables = min(weights, shape.table_parameters * _BYTES[profile.precision.dtype])
    looked_up = 0 if shape.tied else shape.vocabulary * shape.hidden * _BYTES[profile.precision.dtype]
    used = (weights - tables) * min(1, shape.active_parameters / max(1, shape.layer_parameters))
    used += max(0, tables - looked_up)
    cache = tokens * kv_bytes_per_token(profile) + sequences * kv_bytes_per_sequence(profile)
    # Stages of a pipeline work at the same time only on different sequences.
    gpus = profile.gpu.tensor * min(profile.gpu.pipeline, sequences)
    return (used + cache) / (profile.hardware.bandwidth * profile.hardware.reached_bandwidth * gpus)


def _gib(size: float) -> float:
    return round(size / GIB, 2)
