"""GPUs and models: figures from data sheets and from published model configurations."""

from dataclasses import dataclass
from typing import Final

GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        memory_mib: as nvidia-smi reports it.
        compute_capability: major and minor version as one number, 86 for 8.6.
        bandwidth: memory bandwidth in bytes per second, from the data sheet.
        flops: dense 16-bit tensor operations per second, from the data sheet.
        reached_bandwidth: share of the bandwidth that decoding reaches.
        reached_flops: share of the operations that prefill reaches.
    """

    title: str
    memory_mib: int
    compute_capability: int
    bandwidth: float
    flops: float
    reached_bandwidth: float
    reached_flops: float

    @property
    def memory_bytes(self) -> int:
        """Memory of the whole GPU in bytes."""
        return self.memory_mib * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a decoder-only transformer with gated MLPs and untied embeddings.

    Attributes:
        max_positions: tokens that its position encoding was trained for.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int

    @property
    def layer_parameters(self) -> int:
        """Parameters of all layers: attention, MLP and the two norms of each."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate + 2 * self.hidden)

    @property
    def table_parameters(self) -> int:
        """Parameters of the embedding and of the output projection, and the last norm."""
        return 2 * self.vocabulary * self.hidden + self.hidden

    @property
    def activations_per_token(self) -> int:
        """Values held per token while a layer is computed."""
        projections = self.head_dim * (self.heads + 2 * self.kv_heads)
        return 4 * self.hidden + projections + 3 * self.intermediate


# From data sheets; memory as nvidia-smi shows it. The cost model of cli/stack/servers/engine_options.py uses
# the A6000 and the H200; A100 and H100 are assumed to reach what their successor does.
GPUS: Final = {
    "a6000": Gpu(
        title="RTX A6000 48 GB",
        memory_mib=49_140,
        compute_capability=86,
        bandwidth=768e9,
        flops=155e12,
        reached_bandwidth=0.85,
        reached_flops=0.5,
    ),
    "l40s": Gpu(
        title="L40S 48 GB",
        memory_mib=46_068,
        compute_capability=89,
        bandwidth=864e9,
        flops=362e12,
        reached_bandwidth=0.85,
        reached_flops=0.5,
    ),
    "a100-80": Gpu(
        title="A100 80 GB SXM",
        memory_mib=81_920,
        compute_capability=80,
        bandwidth=2.039e12,
        flops=312e12,
        reached_bandwidth=0.75,
        reached_flops=0.55,
    ),
    "h100": Gpu(
        title="H100 80 GB SXM",
        memory_mib=81_559,
        compute_capability=90,
        bandwidth=3.35e12,
        flops=989e12,
        reached_bandwidth=0.75,
        reached_flops=0.55,
    ),
    "h200": Gpu(
        title="H200 141 GB SXM",
        memory_mib=143_771,
        compute_capability=90,
        bandwidth=4.8e12,
        flops=989e12,
        reached_bandwidth=0.75,
        reached_flops=0.55,
    ),
}

SHAPES: Final = {
    "llama-3.1-8b": ModelShape(
        layers=32,
        hidden=4096,
        intermediate=14_336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary=128_256,
        max_positions=131_072,
    ),
}
