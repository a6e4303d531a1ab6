"""The groups of a profile: model, GPUs, number formats, limits, jobs, cluster and image."""

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Dtype = Literal["float16", "bfloat16"]
Precision = Literal["float16", "bfloat16", "int8", "fp8", "int4_awq"]
KvPrecision = Literal["float16", "bfloat16", "int8", "fp8"]

_MOST_PER_NODE: Final = 8  # of the machines that NVIDIA builds
_REPOSITORY: Final = r"^[\w.-]+/[\w.-]+$"
_WORD: Final = r"^[\w.@-]+$"


class ProfileGroup(BaseModel):
    """A group of a profile; a misspelt field is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelGroup(ProfileGroup):
    """The model to serve."""

    repository: str = Field(pattern=_REPOSITORY, description="on the Hugging Face hub, owner/name")
    served_name: str = Field(min_length=1, description="the name callers see in `model`")
    shape: Literal["llama-3.1-8b"] | None = Field(
        default=None, description="its dimensions, in hardware.py; not needed beside `config`"
    )
    config: str | None = Field(
        default=None, min_length=1, description="the model's config.json, as a path from the profile's folder"
    )
    triton_name: str = Field(
        default="tensorrt_llm",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="name of the engine on its Triton; any but the default runs next to a first engine",
    )


class GpuGroup(ProfileGroup):
    """The GPUs. Several share every layer (tensor parallelism), or form stages of layers (pipeline)."""

    kind: Literal["a6000", "l40s", "a100-80", "h100", "h200"]
    count: int = Field(default=1, ge=1, le=64, description="in all, over all nodes")
    pipeline: int = Field(default=1, ge=1, le=64, description="stages; each has its share of the GPUs")
    nodes: int = Field(default=1, ge=1, le=8, description="machines; several need Slurm")
    devices: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(),
        description="indices on the machine, where several engines share it; empty: the first ones",
    )

    @property
    def tensor(self) -> int:
        """GPUs that share each layer."""
        return self.count // self.pipeline

    @property
    def per_node(self) -> int:
        """GPUs of one machine."""
        return self.count // self.nodes

    @model_validator(mode="after")
    def _gpus_divide(self) -> Self:
        if self.count % self.pipeline or self.count % self.nodes:
            raise ValueError("gpu.count must be a multiple of gpu.pipeline and of gpu.nodes")
        if self.per_node > _MOST_PER_NODE:
            raise ValueError(f"{self.per_node} GPUs on one machine: set gpu.nodes")
        if self.devices and (len(set(self.devices)) != self.count or self.nodes > 1):
            raise ValueError("gpu.devices must name gpu.count different GPUs of one machine")
        return self


class PrecisionGroup(ProfileGroup):
    """The number formats."""

    dtype: Dtype = Field(description="of activations, and of weights that are not quantized")
    weights: Precision = Field(
        description="int8, int4_awq: weights only (W8A16, W4A16); fp8: weights and activations (W8A8)"
    )
    kv_cache: KvPrecision
    calibration: str | None = Field(
        default=None,
        pattern=r"^/data/[\w./-]+$",
        description="folder of the data set for fp8, int4_awq or an int8 cache; None: one from the hub",
    )


class EngineGroup(ProfileGroup):
    """The limits of the engine, and how the executor schedules."""

    max_batch_size: int = Field(ge=1, le=2048, description="sequences that decode at once")
    max_input_len: int = Field(ge=1, description="tokens of a prompt; enforced by Longbatch alone")
    max_seq_len: int = Field(ge=2, description="tokens of prompt and output; the engine clamps silently")
    max_num_tokens: int = Field(ge=1, description="tokens of an iteration, and so of a prompt chunk")
    kv_cache_tokens: int = Field(ge=1, description="tokens in the KV pool")
    tokens_per_block: Literal[16, 32, 64, 128]
    free_gpu_memory_fraction: float = Field(
        gt=0, lt=1, description="of the memory that weights leave free; caps the pool"
    )
    chunked_context: bool
    paged_context_fmha: bool
    kv_cache_reuse: bool
    scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"]
    host_cache_gib: float = Field(
        default=0, ge=0, description="memory of the host for reused prefixes that the pool has no room for"
    )

    @model_validator(mode="after")
    def _input_fits_sequence(self) -> Self:
        if self.max_input_len >= self.max_seq_len:
            raise ValueError("max_input_len must be below max_seq_len")
        return self


class SpeculativeGroup(ProfileGroup):
    """A small model that drafts, for the large one to check."""

    max_draft_len: int = Field(ge=1, le=64, description="tokens that it drafts at a time")
    draft_model: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_]*$",
        description="name of the draft's engine on the same Triton; for engines that are built",
    )
    draft_repository: str | None = Field(
        default=None, pattern=_REPOSITORY, description="the draft, fetched beside the model; for llmapi"
    )


class WorkloadGroup(ProfileGroup):
    """The expected jobs; only the plan uses them."""

    full_output_tokens: int = Field(ge=1, description="output tokens with the longest prompt")
    typical_prompt_tokens: int = Field(ge=1)
    typical_output_tokens: int = Field(ge=1)


class SlurmGroup(ProfileGroup):
    """What a cluster's Slurm asks of a job; sbatch's own options and variables go before it."""

    account: str | None = Field(default=None, pattern=_WORD)
    partition: str | None = Field(default=None, pattern=_WORD)
    time: str | None = Field(
        default=None, pattern=r"^[\d:-]+$", description="limit, as days-hours:minutes:seconds"
    )
    output: str = Field(default="%x-%j.log", pattern=r"^[\w%./-]+$", description="file of the job's output")

    def options(self) -> list[str]:
        """List the options of sbatch, without dashes."""
        named = {
            "account": self.account,
            "partition": self.partition,
            "time": self.time,
            "output": self.output,
        }
        return [f"{name}={value}" for name, value in named.items() if value is not None]


class ImageGroup(ProfileGroup):
    """The image with TensorRT-LLM.

    The names of two inputs differ between builds of one release: `seed` was `random_seed`, `min_tokens` was
    `min_length`. The image's own template shows which it uses.
    """

    name: str = Field(pattern=r"^[\w./:@-]+$", description="NVIDIA's image, with its registry")
    flow: Literal["build", "llmapi"] = Field(
        default="build",
        description="build: trtllm-build and the C++ backend, up to image 26.07; llmapi: the PyTorch engine,"
        " which serves the checkpoint as it is published",
    )
    seed_input: Literal["seed", "random_seed"] = "seed"
    min_tokens_input: Literal["min_tokens", "min_length"] = "min_tokens"
