"""How long one iteration of an in-flight batching engine takes, from the roofline of its GPU."""

from dataclasses import dataclass

from cli.stack.servers import engine_options
from cli.stack.servers.engine_options import Roofline
from cli.stack.servers.engine_size import EngineSize
from jobs.engines.capacity import Capacity


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


def model_of(size: EngineSize, gpu: Roofline, *, time_scale: float = 1) -> EngineModel:
    """Model an engine of this size that is `time_scale` times as fast as the GPU."""
    return EngineModel(
        capacity=size.capacity,
        chunk=size.max_num_tokens,
        weights_s=gpu.iteration / time_scale,
        kv_s=gpu.kv_token / time_scale,
        prefill_s=gpu.prefill_token / time_scale,
        pair_s=gpu.attention_pair / time_scale,
    )


# The deployment the product is made for: 131,072 tokens of KV in blocks of 64.
_SIZE = EngineSize()
CAPACITY = _SIZE.capacity
A6000 = model_of(_SIZE, engine_options.A6000)
H200 = model_of(_SIZE, engine_options.H200)


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
