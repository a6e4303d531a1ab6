"""GPUs and models: figures from data sheets and from published model configurations."""

from dataclasses import dataclass
from typing import Final

from cli.engine.cache_layout import CacheLayout, LayerGroup

GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        memory_mib: as nvidia-smi reports it.
        compute_capability: major and minor version as one number, 86 for 8.6.
        bandwidth: memory bandwidth in bytes per second, from the data sheet.
        flops: dense 16-bit tensor operations per second, from the data sheet.
        reached_bandwidth: share of the bandwidth that decoding reaches; by default with HBM.
        reached_flops: share of the operations that prefill reaches; by default with HBM.
        is_workstation: CUDA's forward compatibility, a newer image on an older driver, is not for it.
    """

    title: str
    memory_mib: int
    compute_capability: int
    bandwidth: float
    flops: float
    reached_bandwidth: float = 0.75
    reached_flops: float = 0.55
    is_workstation: bool = False

    @property
    def memory_bytes(self) -> int:
        """Memory of the whole GPU in bytes."""
        return self.memory_mib * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a decoder-only transformer with gated MLPs.

    Attributes:
        max_positions: tokens that its position encoding was trained for; 0 if it has none.
        tied: embedding and output projection are one table.
        layout: what its layers keep. None: every layer keeps keys and values of all tokens.
        checkpoint_bytes: its weights as they are published. None: they follow from the dimensions.
        is_quantized: they are published in fewer than 16 bits.
        active_intermediate: width of the MLPs that one token passes; less than all in a mixture of
            experts. None: `intermediate`.
        model_type: transformers' name.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    tied: bool = False
    layout: CacheLayout | None = None
    checkpoint_bytes: int | None = None
    is_quantized: bool = False
    active_intermediate: int | None = None
    model_type: str = "llama"

    @property
    def cache(self) -> CacheLayout:
        """What its layers keep of a sequence."""
        if self.layout is not None:
            return self.layout
        values = 2 * self.kv_heads * self.head_dim
        return CacheLayout((LayerGroup(kind="full", layers=self.layers, token_values=values),))

    @property
    def layer_parameters(self) -> int:
        """Parameters of all layers: as published, or attention, MLP and the two norms of each."""
        if self.checkpoint_bytes is not None:
            return max(0, self.checkpoint_bytes // 2 - self.table_parameters)
        return self._parameters(self.intermediate)

    @property
    def active_parameters(self) -> int:
        """Parameters of all layers that one token passes."""
        return self._parameters(self.active_intermediate or self.intermediate)

    @property
    def table_parameters(self) -> int:
        """Parameters of the embedding and of the output projection, and the last norm."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    @property
    def activations_per_token(self) -> int:
        """Values held per token while a layer is computed."""
        projections = self.head_dim * (self.heads + 2 * self.kv_heads)
        return 4 * self.hidden + projections + 3 * (self.active_intermediate or self.intermediate)

    def _parameters(self, intermediate: int) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * intermediate + 2 * self.hidden)


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
        is_workstation=True,
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
    ),
    "h100": Gpu(
        title="H100 80 GB SXM",
        memory_mib=81_559,
        compute_capability=90,
        bandwidth=3.35e12,
        flops=989e12,
    ),
    "h200": Gpu(
        title="H200 141 GB SXM",
        memory_mib=143_771,
        compute_capability=90,
        bandwidth=4.8e12,
        flops=989e12,
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
