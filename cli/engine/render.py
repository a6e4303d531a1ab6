"""Every file that a deployment needs, rendered from its profile, so no number is typed twice."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Final

from cli.engine import build_commands, llmapi, plan, values
from cli.engine.errors import RenderError
from cli.engine.profile import Profile
from cli.triton_files import TRITON_FILES

# `@{name}`, because shell scripts and compose files are full of dollars.
_PLACE: Final = re.compile(r"@\{(\w+)\}")
TEMPLATES: Final = TRITON_FILES / "templates"
PLAN: Final = "plan.json"
MODELS: Final = "repository"
_BUILD: Final = frozenset({"convert.sh", "build.sh"})
_CONVERTED: Final = frozenset(
    {"llama", "mistral", "ministral"}
)  # by convert_checkpoint.py of examples/…/llama


def render(profile: Profile) -> dict[str, str]:
    """Render the text of each file, by its path in the rendered folder.

    Raises:
        RenderError: the image has no script for the profile's model.
    """
    is_built = profile.image.flow == "build"
    if is_built and profile.shape.model_type not in _CONVERTED:
        raise RenderError(
            f"model_type {profile.shape.model_type}: engines are built with the image's script for Llama; set"
            ' image.flow = "llmapi", which builds nothing'
        )
    files: dict[str, str] = {} if is_built else {llmapi.MODEL_YAML: llmapi.model_yaml(profile)}
    for model in values.model_names(profile) if is_built else ():
        filled = values.fill(profile, model)
        files[f"fill/{model}"] = "".join(f"{name}:{value}\n" for name, value in filled.items())
    known = _texts(profile)
    for template in sorted(TEMPLATES.glob("*.*")):
        if template.name in _BUILD and not is_built:
            continue
        files[template.name] = _PLACE.sub(lambda place: known[place[1]], template.read_text())
    return files | {PLAN: json.dumps(asdict(plan.plan(profile)), indent=2) + "\n"}


def config_text(profile: Profile, model: str) -> str:
    """Render what a model's config.pbtxt says as far as the profile sets it; `engine check` compares with it.

    It is no configuration to serve with: the image's own template declares more, and a backend needs that.
    """
    text = template_text(model)
    if model not in {values.template_name(model), values.DEFAULT_NAME}:
        text = text.replace(f'name: "{values.DEFAULT_NAME}"', f'name: "{model}"', 1)
    return f"# {_HEADER.format(profile.name)}\n{Template(text).substitute(values.own_fill(profile, model))}"


def template_text(model: str) -> str:
    """Read the model's template, with the names of values in braces."""
    return (TEMPLATES / values.template_name(model) / "config.pbtxt").read_text()


def write(files: dict[str, str], folder: Path) -> None:
    """Write the files; those of an earlier rendering that are no longer rendered are removed.

    Raises:
        RenderError: the folder contains files that are not from an earlier rendering.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / PLAN).is_file():
        raise RenderError(f"{folder} contains other files: use an empty or a new folder")
    for name in ("fill", MODELS):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        if target.suffix == ".sh":
            target.chmod(0o755)


_HEADER: Final = (
    "Rendered by `longbatch engine render` from the profile {}: change the profile, not this file."
)


def _texts(profile: Profile) -> dict[str, str]:
    """Build the values that the templates of scripts and settings refer to."""
    settings = build_commands.engine_settings(profile)
    found = plan.plan(profile)
    return {
        "header": _HEADER.format(profile.name),
        "name": profile.name,
        "image": profile.image.name,
        "gpu": profile.hardware.title,
        "gpu_count": str(profile.gpu.count),
        "gpus_per_node": str(profile.gpu.per_node),
        "nodes": str(profile.gpu.nodes),
        "flow": profile.image.flow,
        "docker_gpus": _docker_gpus(profile),
        "slurm_options": "".join(f"#SBATCH --{each}\n" for each in profile.slurm.options()),
        "gpu_gib": f"{found.gpu_gib:g}",
        "compute_capability": str(profile.hardware.compute_capability),
        "workstation": "yes" if profile.hardware.is_workstation else "no",
        "memory_mib": str(int(found.gpu_gib * 1024)),
        "model_repository": profile.model.repository,
        "model_dir": values.model_dir(profile),
        "checkpoint_dir": values.checkpoint_dir(profile),
        "engine_dir": values.engine_dir(profile),
        "triton_name": profile.model.triton_name,
        "models": " ".join(values.model_names(profile)),
        "templates": " ".join(values.template_name(each) for each in values.model_names(profile)),
        "max_batch_size": str(profile.engine.max_batch_size),
        "max_input_len": str(profile.engine.max_input_len),
        "pool_blocks": str(found.pool_blocks),
        "convert_script": build_commands.convert_script(profile),
        "convert_options": _lines(build_commands.convert_options(profile)),
        "build_options": _lines(build_commands.build_options(profile)),
        "server_flags": "\n".join(f"    {flag}" for flag in build_commands.server_flags(profile)),
        "settings": "".join(f"{name}={value}\n" for name, value in settings.items()),
        "settings_yaml": "\n".join(f'    {name}: "{value}"' for name, value in settings.items()),
        "model_folder": values.model_dir(profile).removeprefix(f"{values.DATA}/"),
    }


def _docker_gpus(profile: Profile) -> str:
    """Name the GPUs for docker's --gpus: all, where the engine says itself which of them it uses."""
    if profile.gpu.devices and profile.image.flow == "llmapi":  # has no parameter for them
        return f'\\"device={",".join(map(str, profile.gpu.devices))}\\"'
    return "all" if profile.gpu.devices else str(profile.gpu.count)


def _lines(options: list[str]) -> str:
    return " \\\n".join(f"    {option}" for option in options)
