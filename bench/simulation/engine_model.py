"""How long one iteration of an in-flight batching engine takes, from the roofline of its GPU."""

from dataclasses import dataclass

from jobs.engines.capacity import Capacity

# Llama 3.1 8B: bytes of its fp16 weights, of one token's fp16 KV cache (2 x 32 layers x 8 heads x 128 x 2 B),
# and flops of one attended pair (4 x 32 layers x 4096).
WEIGHT_BYTES = 16.06e9
KV_BYTES_PER_TOKEN = 131_072
PAIR_FLOPS = 524_288


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Iteration time = w + c x resident KV tokens + a x prefill tokens + q x attended pairs.

    Attributes:
        capacity: slots and KV blocks.
        chunk: most prompt tokens computed in one iteration.
        weights_s: w, reading the weights once, in seconds.
        kv_s: c, reading one token's KV, in seconds.
        prefill_s: a, one prompt token through the matrices, in seconds.
        pair_s: q, one query-key pair of a prompt's causal attention, in seconds.
    """

    capacity: Capacity
    chunk: int
    weights_s: float
    kv_s: float
    prefill_s: float
    pair_s: float


def roofline(*, bytes_per_s: float, flops_per_s: float) -> EngineModel:
    """Model a GPU that reaches this much of its bandwidth and of its fp16 arithmetic."""
    return EngineModel(
        capacity=CAPACITY,
        chunk=8192,
        weights_s=WEIGHT_BYTES / bytes_per_s,
        kv_s=KV_BYTES_PER_TOKEN / bytes_per_s,
        prefill_s=WEIGHT_BYTES / flops_per_s,
        pair_s=PAIR_FLOPS / flops_per_s,
    )


# The deployment the product is made for: 131,072 tokens of KV in blocks of 64.
CAPACITY = Capacity(
    max_batch_size=4, max_blocks=2048, tokens_per_block=64, max_input_len=96_000, max_seq_len=131_072
)
# Data-sheet figures times the share that large kernels reach; not yet fitted to a real GPU.
A6000 = roofline(bytes_per_s=768e9 * 0.85, flops_per_s=155e12 * 0.5)
H200 = roofline(bytes_per_s=4.8e12 * 0.75, flops_per_s=990e12 * 0.55)


def chunk_pairs(num_tokens: int, *, cached: int) -> int:
    """Count a chunk's query-key pairs: each token sees itself and all before."""
    return num_tokens * cached + num_tokens * (num_tokens + 1) // 2


def decode_s(model: EngineModel, steps: int, *, num_sequences: int, kv_tokens: int) -> float:
    """Compute the seconds of `steps` iterations without prefill, in closed form.

    Args:
        model: of the engine.
        steps: iterations, all with the same sequences.
        num_sequences: decoding; each adds one token to the cache in each iteration, and reads it.
        kv_tokens: resident before the first iteration.
    """
    read = steps * kv_tokens + num_sequences * steps * (steps + 1) // 2
    return steps * model.weights_s + model.kv_s * read
