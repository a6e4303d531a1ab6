"""A profile: the one file that describes an engine, read from TOML and validated."""

import re
import tomllib
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError, model_validator

from cli.engine import model_config
from cli.engine.errors import ProfileError
from cli.engine.hardware import GPUS, SHAPES, Gpu, ModelShape
from cli.engine.profile_groups import (
    EngineGroup,
    GpuGroup,
    ImageGroup,
    ModelGroup,
    Precision,
    PrecisionGroup,
    ProfileGroup,
    SlurmGroup,
    SpeculativeGroup,
    WorkloadGroup,
)
from cli.triton_files import TRITON_FILES

PROFILES: Final = TRITON_FILES / "profiles"

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
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


class Profile(ProfileGroup):
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
        if name is not None and self.dimensions is None and name not in model.repository.lower():
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
