"""Where rendered, filled-in or built files differ from their profile."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli.engine import llmapi, model_config, pbtxt, render, values
from cli.engine.errors import RenderError
from cli.engine.profile import COMPARED, Profile

_CONFIG: Final = "config.pbtxt"
# Tensors that only some versions of the image declare.
_OPTIONAL: Final = frozenset(
    {
        "input.prompt_embedding_table.data_type",
        "input.draft_logits.data_type",
        "input.encoder_input_features.data_type",
    }
)

# TensorRT-LLM's names; there is none for 16 bits.
_ALGORITHMS: Final = {"int8": "W8A16", "fp8": "FP8", "int4_awq": "W4A16_AWQ"}
_ALGORITHMS_OF_CACHE: Final = {"int8": "INT8", "fp8": "FP8"}


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference.

    Attributes:
        file: path relative to the folder.
        name: of the value; empty for the file itself.
        found: the value in the file; None if it is missing, empty for an option without a value.
        expected: the value in the profile; None and empty as in `found`.
    """

    file: str
    name: str
    found: str | None
    expected: str | None

    def sentence(self) -> str:
        """Describe the difference in a sentence."""
        if not self.name:
            return f"{self.file} is missing" if self.found is None else f"{self.file}: {self.found}"
        if self.expected == "":
            return f"{self.file}: `{self.name}` is missing"
        if self.found == "":
            return f"{self.file}: `{self.name}` is not in the profile"
        found = "is missing" if self.found is None else f"is {self.found}"
        expected = "does not have it" if self.expected is None else f"says {self.expected}"
        return f"{self.file}: {self.name} {found}, the profile {expected}"


def find(profile: Profile, folder: Path) -> list[Drift]:
    """List the differences between a folder and the profile.

    Args:
        profile: the expected values.
        folder: a rendered folder, a model repository filled in by the image's tools, a fetched model, or a
            built engine.

    Raises:
        RenderError: the folder is none of these.
        ProfileError: the fetched model cannot be counted.
    """
    if (folder / render.PLAN).is_file():
        return list(_in_rendered(profile, folder))
    if any((folder / model / _CONFIG).is_file() for model in values.model_names(profile)):
        return list(_in_repository(profile, folder))
    if (folder / "tokenizer.json").is_file() and (folder / "config.json").is_file():
        return list(_in_model(profile, folder))
    if (folder / "config.json").is_file():
        return list(_in_engine(profile, folder))
    raise RenderError(
        f"{folder} is neither a rendered folder, nor a model repository with"
        f" {values.model_names(profile)[0]}, nor a model, nor an engine with a config.json"
    )


def _in_rendered(profile: Profile, folder: Path) -> Iterator[Drift]:
    """Compare all files; the plan only if no other differs, because it repeats them."""
    files = render.render(profile)
    plan = files.pop(render.PLAN)
    found = list(_in_files(files, folder))
    yield from found or _in_files({render.PLAN: plan}, folder)


def _in_files(files: Mapping[str, str], folder: Path) -> Iterator[Drift]:
    for file, text in files.items():
        path = folder / file
        if not path.is_file():
            yield Drift(file, "", None, "")
            continue
        found = path.read_text()
        if found != text:
            yield from _different(file, found, text)


def _different(file: str, found: str, expected: str) -> Iterator[Drift]:
    """Yield the values that differ, or one difference for the file if no value does."""
    try:
        has, wants = _values(file, found), _values(file, expected)
    except (RenderError, ValueError) as error:
        yield Drift(file, "", str(error), "")
        return
    differences = [
        Drift(file, name, has.get(name), wants.get(name))
        for name in dict.fromkeys([*wants, *has])
        if has.get(name) != wants.get(name)
    ]
    yield from differences or [Drift(file, "", "its comments or its layout differ", "")]


def _in_repository(profile: Profile, folder: Path) -> Iterator[Drift]:
    """Compare the values that the profile sets; the image's templates have more."""
    if profile.image.flow == "llmapi":
        file = f"{values.model_names(profile)[0]}/1/{llmapi.MODEL_YAML}"
        yield from _in_files({file: llmapi.model_yaml(profile)}, folder)
        return
    for model in values.model_names(profile):
        file = f"{model}/{_CONFIG}"
        path = folder / file
        if not path.is_file():
            yield Drift(file, "", None, "")
            continue
        try:
            has = pbtxt.values(path.read_text())
        except RenderError as error:
            yield Drift(file, "", error.message, "")
            continue
        wants = pbtxt.values(render.config_text(profile, model))
        filled = pbtxt.values(render.template_text(model)).items()
        for name in (name for name, value in filled if "${" in value and name in wants):
            if name in _OPTIONAL and name not in has:
                continue
            if has.get(name) != wants[name]:
                yield Drift(file, name, has.get(name), wants[name])


def _in_model(profile: Profile, folder: Path) -> Iterator[Drift]:
    """Compare the fetched model with the dimensions that the profile was planned with."""
    found, planned = model_config.read(folder / "config.json"), profile.shape
    for name in COMPARED:
        if getattr(found, name) != getattr(planned, name):
            yield Drift("config.json", name, str(getattr(found, name)), str(getattr(planned, name)))


def _in_engine(profile: Profile, folder: Path) -> Iterator[Drift]:
    """Compare the config.json that trtllm-build writes next to the engine."""
    try:
        has = _json_values(json.loads((folder / "config.json").read_text()))
    except ValueError as error:
        yield Drift("config.json", "", f"it is not JSON: {error}", "")
        return
    engine = profile.engine
    wants = {
        "build_config.max_batch_size": engine.max_batch_size,
        "build_config.max_input_len": engine.max_input_len,
        "build_config.max_seq_len": engine.max_seq_len,
        "build_config.max_num_tokens": engine.max_num_tokens,
        "build_config.plugin_config.tokens_per_block": engine.tokens_per_block,
        "build_config.plugin_config.use_paged_context_fmha": engine.paged_context_fmha,
        "pretrained_config.mapping.tp_size": profile.gpu.tensor,
        "pretrained_config.dtype": profile.precision.dtype,
        "pretrained_config.quantization.quant_algo": _ALGORITHMS.get(profile.precision.weights),
        "pretrained_config.quantization.kv_cache_quant_algo": _ALGORITHMS_OF_CACHE.get(
            profile.precision.kv_cache
        ),
    }
    if profile.gpu.pipeline > 1:
        wants["pretrained_config.mapping.pp_size"] = profile.gpu.pipeline
    for name, value in wants.items():
        if has.get(name) != _text(value):
            yield Drift("config.json", name, has.get(name), _text(value))


def _values(file: str, text: str) -> dict[str, str]:
    """Parse the named values of a rendered file, by its kind."""
    if file.endswith(".pbtxt"):
        return pbtxt.values(text)
    if file.endswith(".yaml"):
        return _indented(text)
    if file.endswith(".json"):
        return _json_values(json.loads(text))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("# ")]
    if file.startswith("fill/"):
        return _pairs(lines, ":")
    if file.endswith(".env"):
        return _pairs(lines, "=")
    return _options(lines)


def _indented(text: str) -> dict[str, str]:
    """Parse names and values of a file in YAML's plain style, two spaces a level, by their path."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator and not line.startswith("#"):
            above = [*above[: (len(name) - len(name.lstrip())) // 2], name.strip()]
            if value.strip():
                found[".".join(above)] = value.strip()
    return found


def _pairs(lines: list[str], separator: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(separator) for line in lines)}


def _options(lines: list[str]) -> dict[str, str]:
    """Parse a script or compose file: options by name, other lines by their text."""
    found: dict[str, str] = {}
    for line in lines:
        bare = line.removesuffix("\\").strip()
        name, separator, value = _split(bare)
        found[name if separator else bare] = value if separator else ""
    return found


def _split(line: str) -> tuple[str, str, str]:
    for separator in ("=", " ") if line.startswith("-") else (": ", "="):
        name, found, value = line.partition(separator)
        if found and " " not in name:
            return name, found, _unquoted(value)
    return line, "", ""


def _unquoted(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return words[0] if len(words) == 1 else text


def _json_values(value: Any, prefix: str = "") -> dict[str, str]:  # noqa: ANN401  # any JSON
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for name, each in value.items():
            found |= _json_values(each, f"{prefix}.{name}" if prefix else str(name))
        return found
    return {prefix: _text(value)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
