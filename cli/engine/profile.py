"""A profile: the one file that describes an engine, read from TOML and validated."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cli.engine import model_config
from cli.engine.errors import ProfileError
from cli.engine.hardware import GPUS, SHAPES, Gpu, ModelShape, is_shape_of
from cli.triton_files import TRITON_FILES

PROFILES: Final = TRITON_FILES / "profiles"

Dtype = Literal["float16", "bfloat16"]
Precision = Literal["float16", "bfloat16", "int8", "fp8", "int4_awq"]
KvPrecision = Literal["float16", "bfloat16", "int8", "fp8"]

# What tells models of one shape from others.
COMPARED: Final = (
    "layers",
    "hidden",
    "intermediate",
    "heads",
    "kv_heads",
    "head_dim",
    "vocabulary",
    "max_positions",
    "cache",
)
_MOST_PER_NODE: Final = 8  # of the machines that NVIDIA builds
_REPOSITORY: Final = r"^[\w.-]+/[\w.-]+$"
_WORD: Final = r"^[\w.@-]+$"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelGroup(_Group):
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


class GpuGroup(_Group):
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


class PrecisionGroup(_Group):
    """The number formats."""

    dtype: Dtype = Field(description="of activations, and of weights that are not quantized")
    weights: Precision = Field(
        description="int8, int4_awq: weights only (W8A16, W4A16); fp8: weights and activations (W8A8)"
    )
    kv_cache: KvPrecision
    calibration: str | None = Field(
        default=None,
        pattern=r"^/data/[\w./-]+$",
        description="folder of the data set for fp8 and int4_awq; None: the script loads one from the hub",
    )


class EngineGroup(_Group):
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


class SpeculativeGroup(_Group):
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


class WorkloadGroup(_Group):
    """The expected jobs; only the plan uses them."""

    full_output_tokens: int = Field(ge=1, description="output tokens with the longest prompt")
    typical_prompt_tokens: int = Field(ge=1)
    typical_output_tokens: int = Field(ge=1)


class SlurmGroup(_Group):
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


class ImageGroup(_Group):
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


class Profile(_Group):
    """The description of one engine.

    Attributes:
        name: of its file.
        dimensions: read from the model's config.json. None: those of `model.shape`.
    """

    name: str
    dimensions: ModelShape | None = None
    model: ModelGroup
    gpu: GpuGroup
    precision: PrecisionGroup
    engine: EngineGroup
    workload: WorkloadGroup
    speculative: SpeculativeGroup | None = None
    slurm: SlurmGroup = SlurmGroup()
    image: ImageGroup

    @model_validator(mode="after")
    def _weights_have_a_known_format(self) -> Self:
        if self.precision.weights not in {self.precision.dtype, "int8", "fp8", "int4_awq"}:
            raise ValueError("precision.weights must be precision.dtype, int8, fp8 or int4_awq")
        return self

    @model_validator(mode="after")
    def _model_has_its_shape(self) -> Self:
        name, model = self.model.shape, self.model
        if name is None and self.dimensions is None:
            raise ValueError("model.config or model.shape must say what the model's dimensions are")
        if name is not None and self.dimensions is None and not is_shape_of(name, model.repository):
            raise ValueError(
                f"nothing says that {model.repository} has the shape {name}: name its config.json in"
                " model.config"
            )
        if name is not None and self.dimensions is not None:
            wrong = [
                f"{each} is {getattr(self.dimensions, each)}, of {name} {getattr(SHAPES[name], each)}"
                for each in COMPARED
                if getattr(self.dimensions, each) != getattr(SHAPES[name], each)
            ]
            if wrong:
                raise ValueError(f"model.config is not of model.shape: {'; '.join(wrong)}")
        return self

    @model_validator(mode="after")
    def _flow_can_serve_it(self) -> Self:
        draft, formats = self.speculative, self.precision
        if self.image.flow == "build":
            if draft is not None and draft.draft_model is None:
                raise ValueError("speculative.draft_model must name the draft's engine")
            return self
        if draft is not None and draft.draft_repository is None:
            raise ValueError("speculative.draft_repository must name the draft on the hub")
        if "int8" in {formats.weights, formats.kv_cache}:
            raise ValueError("llmapi serves no int8: its weights are those of the published checkpoint")
        return self

    @model_validator(mode="after")
    def _gpus_share_heads(self) -> Self:
        if self.shape.kv_heads % self.gpu.tensor:
            raise ValueError(
                f"gpu.count / gpu.pipeline must divide the model's {self.shape.kv_heads} KV heads"
            )
        if self.shape.layers < self.gpu.pipeline:
            raise ValueError(f"gpu.pipeline has more stages than the model's {self.shape.layers} layers")
        return self

    @property
    def shape(self) -> ModelShape:
        """Dimensions of the model."""
        if self.dimensions is not None:
            return self.dimensions
        if self.model.shape is None:
            raise ProfileError("model.config or model.shape must say what the model's dimensions are")
        return SHAPES[self.model.shape]

    @property
    def hardware(self) -> Gpu:
        """Figures of one of the GPUs."""
        return GPUS[self.gpu.kind]


def load(name: str, *, precision: Precision | None = None, config: Path | None = None) -> Profile:
    """Load and validate a profile.

    Args:
        name: a name in triton/profiles, or a path that ends in .toml.
        precision: number format of the weights; None keeps the profile's.
        config: the model's config.json; None takes `model.config` of the profile, if it has one.

    Raises:
        ProfileError: there is no such profile, or it is invalid.
    """
    path = Path(name) if name.endswith(".toml") else PROFILES / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        known = ", ".join(sorted(each.stem for each in PROFILES.glob("*.toml"))) or "none"
        raise ProfileError(f"there is no profile {name}; use one of {known}, or a .toml file") from error
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{path}: {error}") from error
    if not _NAME.fullmatch(path.stem):
        raise ProfileError(f"{path.name}: name it with lower-case letters, digits, dots and hyphens")
    try:
        read = {"name": path.stem, "dimensions": _dimensions(path, content, config)}
        return Profile.model_validate(content | read | _precision(content, precision))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ProfileError(f"{path.name}: {wrong}") from error


def _dimensions(path: Path, content: dict[str, object], config: Path | None) -> ModelShape | None:
    """Read the model's config.json, if one is named."""
    group = content.get("model")
    named = group.get("config") if isinstance(group, dict) else None
    if config is None and isinstance(named, str):
        config = path.parent / named
    return None if config is None else model_config.read(config)


def _precision(content: dict[str, object], weights: Precision | None) -> dict[str, object]:
    """Replace the weights' format; a 16-bit one applies to activations and cache too."""
    group = content.get("precision")
    if weights is None or not isinstance(group, dict):
        return {}
    changed = {"weights": weights}
    if weights in {"float16", "bfloat16"}:
        changed["dtype"] = weights
        if group.get("kv_cache") == group.get("dtype"):
            changed["kv_cache"] = weights
    return {"precision": group | changed}
