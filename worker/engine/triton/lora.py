"""Adapters as TensorRT-LLM takes them: its numbers of modules, and the weights of all layers in one tensor.

Source: TensorRT-LLM 0.19 and later, docs/source/advanced/lora.md; checked against its own converter's rules.
"""

import re
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2

from jobs.adapters.files import (
    CONFIG,
    WEIGHTS,
    digest,
    fetched,
    files_of,
    named_pair,
    read_config,
    read_header,
)
from jobs.errors import AdapterUnreadableError, EngineUnableError
from worker.engine.request import WantedAdapter
from worker.engine.triton.adapter import Tensors

TASK: Final = "lora_task_id"
LORA_INPUTS: Final = frozenset({TASK, "lora_weights", "lora_config"})
# By how Triton's configuration names them. Numpy has no BF16: its bits are sent as they are.
DATATYPES: Final[Mapping[int, str]] = {
    model_config_pb2.TYPE_FP16: "FP16",
    model_config_pb2.TYPE_BF16: "BF16",
    model_config_pb2.TYPE_FP32: "FP32",
}
_MODULES: Final[Mapping[str, int]] = {
    "qkv_proj": 0,
    "q_proj": 1,
    "k_proj": 2,
    "v_proj": 3,
    "o_proj": 4,
    "gate_proj": 5,  # mlp_h_to_4h
    "down_proj": 6,  # mlp_4h_to_h
    "up_proj": 7,  # mlp_gate
}
_LAYER: Final = re.compile(r"layers\.(\d+)\.")
_HALF_OF_BF16: Final = 0x7FFF

Matrix = npt.NDArray[np.float32]


def task_tensor(adapter: WantedAdapter) -> Tensors:
    """Build the tensor that names the adapter.

    Shapes:
        lora_task_id: UINT64 `[1, 1]`.

    Raises:
        EngineUnableError: its files have not the weights as this engine takes them.
    """
    if adapter.format != "peft":
        raise EngineUnableError(
            f"The adapter {adapter.name!r} is a GGUF file; this engine takes those that PEFT has written."
        )
    return {TASK: np.array([[adapter.number]], dtype=np.uint64)}


def weight_tensors(adapter: WantedAdapter, datatype: str) -> Tensors:
    """Read the adapter's weights, which the engine then keeps by its number while it has room.

    A row is a module of a layer: the first matrix, then the second one, scaled; padded to the longest row.

    Shapes:
        lora_weights: `[1, modules of layers, longest row]`; lora_config: INT32 `[1, modules of layers, 3]`,
        module, layer and rank.

    Raises:
        EngineUnableError: the files cannot be read, are not those that were registered, or change what the
            engine cannot.
    """
    try:
        with fetched(adapter.source) as path:
            is_same = digest(files_of(path)) == adapter.sha256
            found = _tensors(path, datatype) if is_same else {}
    except AdapterUnreadableError as error:
        raise EngineUnableError(error.message) from error
    if not is_same:
        raise EngineUnableError(f"The files of the adapter {adapter.name!r} have changed.")
    return found


def _tensors(path: Path, datatype: str) -> Tensors:
    config = read_config(path / CONFIG)
    rank, alpha = int(config["r"]), float(config["lora_alpha"])
    scale = alpha / (sqrt(rank) if config.get("use_rslora") else rank)
    pairs = _pairs(path / WEIGHTS)
    scaled = ((pair["a"], pair["b"] * np.float32(scale)) for pair in pairs.values())
    rows = [np.concatenate([a.ravel(), b.ravel()]) for a, b in scaled]
    weights = np.zeros((len(rows), max(len(row) for row in rows)), dtype=np.float32)
    for row, values in zip(weights, rows, strict=True):
        row[: len(values)] = values
    places = [[module, layer, rank] for layer, module in pairs]
    return {
        "lora_weights": _cast(weights, datatype)[np.newaxis],
        "lora_config": np.array([places], dtype=np.int32),
    }


def _pairs(path: Path) -> dict[tuple[int, int], dict[str, Matrix]]:
    """Read both matrices of each module, by layer and module, in this order."""
    begin, header = read_header(path)
    raw = np.memmap(path, dtype=np.uint8, mode="r", offset=begin)
    found: dict[tuple[int, int], dict[str, Matrix]] = {}
    for name, entry in header.items():
        place, module, side = named_pair(name)
        layer = _LAYER.search(f"{place}.")
        if layer is None or module not in _MODULES:
            known = ", ".join(_MODULES)
            raise EngineUnableError(f"The engine cannot change {place}.{module}; it can change {known}.")
        found.setdefault((int(layer[1]), _MODULES[module]), {})[side] = _matrix(raw, entry)
    return dict(sorted(found.items()))


def _matrix(raw: npt.NDArray[np.uint8], entry: Mapping[str, Any]) -> Matrix:
    at, end = entry["data_offsets"]
    values = raw[at:end].tobytes()
    match entry["dtype"]:
        case "BF16":
            found = (np.frombuffer(values, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
        case "F16":
            found = np.frombuffer(values, dtype="<f2").astype(np.float32)
        case _:
            found = np.frombuffer(values, dtype="<f4")
    return found.reshape(entry["shape"])


def _cast(weights: Matrix, datatype: str) -> npt.NDArray[Any]:
    if datatype == "BF16":  # rounded to the nearest, to even
        bits = weights.view(np.uint32)
        return ((bits + _HALF_OF_BF16 + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return weights if datatype == "FP32" else weights.astype(np.float16)
