"""Adapters with random weights for tests: as GGUF for the small real model, and as PEFT writes them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import safetensors.numpy

from cli.stack.servers.llama_options import bundled_gguf
from jobs.prompts.gguf import Gguf

RANK = 4


def write_gguf_adapter(file: Path, *, seed: int = 1, rank: int = RANK, width: int | None = None) -> Path:
    """An adapter of all output projections of the small model, strong enough that answers differ."""
    shapes, rng = Gguf.read_shapes(bundled_gguf()), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * rank)
    for name in sorted(each for each in shapes if each.endswith("ffn_down.weight")):
        inputs, outputs = shapes[name]
        writer.add_tensor(f"{name}.lora_a", _matrix(rng, rank, width or inputs))
        writer.add_tensor(f"{name}.lora_b", _matrix(rng, outputs, rank))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def write_peft_adapter(
    directory: Path,
    *,
    layers: int = 2,
    seed: int = 1,
    strength: float = 0.1,
    modules: Mapping[str, tuple[int, int]] | None = None,
    **config: Any,  # noqa: ANN401  # of each field's type
) -> Path:
    """An adapter of a model with these modules, by inputs and outputs of each."""
    rng, tensors = np.random.default_rng(seed), {}
    for layer in range(layers):
        for module, (inputs, outputs) in (modules or {"q_proj": (8, 8), "down_proj": (16, 8)}).items():
            part = "mlp" if module in {"gate_proj", "up_proj", "down_proj"} else "self_attn"
            place = f"base_model.model.model.layers.{layer}.{part}.{module}"
            tensors[f"{place}.lora_A.weight"] = _matrix(rng, RANK, inputs, strength)
            tensors[f"{place}.lora_B.weight"] = _matrix(rng, outputs, RANK, strength)
    directory.mkdir(parents=True, exist_ok=True)
    named = sorted({name.split(".")[-3] for name in tensors})
    given = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 8,
        "bias": "none",
        "target_modules": named,
    } | config
    (directory / "adapter_config.json").write_text(json.dumps(given))
    safetensors.numpy.save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def _matrix(
    rng: np.random.Generator, rows: int, columns: int, strength: float = 0.1
) -> npt.NDArray[np.float32]:
    return (strength * rng.normal(size=(rows, columns))).astype(np.float32)
