"""Adapters as tensors of TensorRT-LLM: every value of a small one, in each datatype, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from tritonclient.grpc import model_config_pb2

from jobs.adapters.files import CONFIG, WEIGHTS, check
from jobs.errors import EngineUnableError
from weights.adapters import RANK, write_gguf_adapter, write_peft_adapter
from worker.engine.request import WantedAdapter
from worker.engine.triton.errors import AdapterMissError, stream_error
from worker.engine.triton.lora import LORA_INPUTS, task_tensor, weight_tensors
from worker.engine.triton.model_config import Offer, lora_type

SCALE = 8 / RANK  # lora_alpha over r


def wanted(path: Path) -> WantedAdapter:
    found = check(path)
    return WantedAdapter("legal", 2**40, found.format, str(path), found.sha256)


def test_every_weight_is_in_the_row_of_its_module_and_layer(tmp_path: Path) -> None:
    found = weight_tensors(wanted(write_peft_adapter(tmp_path, layers=2)), "FP32")
    assert found["lora_config"].dtype == np.int32
    # q_proj is module 1 and down_proj 6; by layers.
    assert found["lora_config"].tolist() == [[[1, 0, RANK], [6, 0, RANK], [1, 1, RANK], [6, 1, RANK]]]
    tensors = safetensors.numpy.load_file(tmp_path / WEIGHTS)
    (rows,) = found["lora_weights"]
    for row, (place, length) in zip(
        rows,
        [
            ("0.self_attn.q_proj", 2 * RANK * 8),
            ("0.mlp.down_proj", RANK * 24),
            ("1.self_attn.q_proj", 2 * RANK * 8),
            ("1.mlp.down_proj", RANK * 24),
        ],
        strict=True,
    ):
        first, second = (
            tensors[f"base_model.model.model.layers.{place}.lora_{side}.weight"].ravel() for side in "AB"
        )
        assert np.array_equal(row[:length], np.concatenate([first, second * np.float32(SCALE)]))
        assert not row[length:].any()


def test_weights_are_sent_in_the_datatype_that_the_model_declares(tmp_path: Path) -> None:
    adapter = wanted(write_peft_adapter(tmp_path))
    exact = weight_tensors(adapter, "FP32")["lora_weights"]
    halves = weight_tensors(adapter, "FP16")["lora_weights"]
    assert halves.dtype == np.float16
    assert np.array_equal(halves, exact.astype(np.float16))
    bits = weight_tensors(adapter, "BF16")["lora_weights"]
    assert bits.dtype == np.uint16
    assert np.allclose((bits.astype(np.uint32) << 16).view(np.float32), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_weights_are_read_in_the_datatype_of_their_file(tmp_path: Path, kind: type) -> None:
    write_peft_adapter(tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / WEIGHTS)
    safetensors.numpy.save_file(
        {name: each.astype(kind) for name, each in tensors.items()}, tmp_path / WEIGHTS
    )
    found = weight_tensors(wanted(tmp_path), "FP16")["lora_weights"]
    assert found[0, 0, 0] == tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"][
        0, 0
    ].astype(np.float16)


def test_rank_stabilized_adapters_are_scaled_by_the_root_of_their_rank(tmp_path: Path) -> None:
    plain = weight_tensors(wanted(write_peft_adapter(tmp_path / "a")), "FP32")["lora_weights"]
    stable = weight_tensors(wanted(write_peft_adapter(tmp_path / "b", use_rslora=True)), "FP32")[
        "lora_weights"
    ]
    last = RANK * 24 - 1
    assert np.isclose(stable[0, 1, last], plain[0, 1, last] * RANK / RANK**0.5)
    assert stable[0, 1, 0] == plain[0, 1, 0]


def test_files_that_changed_or_that_the_engine_cannot_take_are_refused(tmp_path: Path) -> None:
    adapter = wanted(write_peft_adapter(tmp_path / "a"))
    config = json.loads((tmp_path / "a" / CONFIG).read_text())
    (tmp_path / "a" / CONFIG).write_text(json.dumps(config | {"lora_alpha": 9}))
    with pytest.raises(EngineUnableError, match="files of the adapter 'legal' have changed"):
        weight_tensors(adapter, "FP16")
    (tmp_path / "a" / CONFIG).unlink()
    with pytest.raises(EngineUnableError, match="Cannot read"):
        weight_tensors(adapter, "FP16")
    strange = wanted(write_peft_adapter(tmp_path / "b", modules={"fc1": (8, 8)}))
    with pytest.raises(EngineUnableError, match=r"cannot change .*fc1; it can change qkv_proj, q_proj"):
        weight_tensors(strange, "FP16")
    with pytest.raises(EngineUnableError, match="is a GGUF file"):
        task_tensor(wanted(write_gguf_adapter(tmp_path / "c.gguf")))


def test_an_engine_takes_adapters_if_its_configuration_was_set_up_for_them() -> None:
    config = model_config_pb2.ModelConfig()
    for name in LORA_INPUTS:
        config.input.add(name=name, data_type=model_config_pb2.TYPE_BF16)
    offer = Offer(config, config)
    assert lora_type(offer, offer.inputs) == ""
    config.parameters["lora_cache_max_adapter_size"].string_value = "${lora_cache_max_adapter_size}"
    assert lora_type(offer, offer.inputs) == ""
    config.parameters["lora_cache_max_adapter_size"].string_value = "64"
    assert lora_type(offer, offer.inputs) == "BF16"
    assert lora_type(offer, offer.inputs - {"lora_config"}) == ""


def test_a_miss_is_known_by_the_engine_s_words() -> None:
    message = "[TensorRT-LLM][ERROR] LoRA task 10 not found in cache. Please send LoRA weights with request"
    assert isinstance(stream_error(message, has_said=False), AdapterMissError)
