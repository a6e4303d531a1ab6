"""Adapters' files: what is read from them, and each rule that they can break."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from cli.stack.servers.llama_options import bundled_gguf
from jobs.adapters.files import CONFIG, MAX_BYTES, WEIGHTS, check, check_base, fetched
from jobs.errors import AdapterUnreadableError
from weights.adapters import RANK, write_gguf_adapter, write_peft_adapter


def test_peft_s_files_tell_rank_modules_and_shapes(tmp_path: Path) -> None:
    found = check(write_peft_adapter(tmp_path / "a"))
    assert (found.format, found.rank, found.modules) == ("peft", RANK, ("down_proj", "q_proj"))
    assert found.shapes == {"q_proj": (8, 8), "down_proj": (16, 8)}
    assert found.num_bytes == sum(each.stat().st_size for each in (tmp_path / "a").iterdir())
    assert check(write_peft_adapter(tmp_path / "b")).sha256 == found.sha256
    assert check(write_peft_adapter(tmp_path / "c", seed=2)).sha256 != found.sha256


def test_a_gguf_file_tells_the_same_and_is_compared_with_its_base(tmp_path: Path) -> None:
    found = check(write_gguf_adapter(tmp_path / "a.gguf"))
    assert (found.format, found.rank, found.modules) == ("gguf", RANK, ("ffn_down",))
    check_base(found, bundled_gguf())
    wrong = check(write_gguf_adapter(tmp_path / "b.gguf", width=64))
    with pytest.raises(AdapterUnreadableError, match=r"ffn_down has the shape 64 to 576, .* 1536 to 576"):
        check_base(wrong, bundled_gguf())


def test_peft_s_shapes_are_compared_with_the_config_of_the_base(tmp_path: Path) -> None:
    config = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_base(check(write_peft_adapter(tmp_path / "a")), tmp_path)
    wrong = check(write_peft_adapter(tmp_path / "b", modules={"k_proj": (8, 8)}))
    with pytest.raises(AdapterUnreadableError, match="k_proj has the shape 8 to 8, the base model's 8 to 4"):
        check_base(wrong, tmp_path)


def test_an_adapter_in_an_object_store_is_fetched(tmp_path: Path) -> None:
    found = check(write_peft_adapter(tmp_path / "a"))
    with fetched(f"file://{tmp_path}/a") as path:
        assert path != tmp_path / "a"
        assert check(path) == found
    assert not path.exists()
    gguf = check(write_gguf_adapter(tmp_path / "b.gguf"))
    with fetched(f"file://{tmp_path}/b.gguf") as path:
        assert check(path) == gguf
    with pytest.raises(AdapterUnreadableError, match="cannot be read"), fetched(f"file://{tmp_path}/none"):
        pass


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type must be 'LORA'"),
        ({"r": 0}, "r must be between 1 and 512"),
        ({"r": 1024}, "r must be between 1 and 512"),
        ({"r": RANK + 1}, "two matrices of rank 5"),
        ({"lora_alpha": 0}, "lora_alpha must be a number above 0"),
        ({"lora_alpha": float("inf")}, "lora_alpha must be a number above 0"),
        ({"use_dora": True}, "use_dora is not supported"),
        ({"bias": "all"}, "bias is not supported"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
    ],
)
def test_a_config_that_breaks_a_rule_is_refused_by_it(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(AdapterUnreadableError, match=message):
        check(write_peft_adapter(tmp_path, **config))


def test_files_that_are_missing_cut_or_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterUnreadableError, match=r"Cannot read .*adapter_config\.json"):
        check(tmp_path)
    (tmp_path / "a.bin").touch()
    with pytest.raises(AdapterUnreadableError, match="neither a directory"):
        check(tmp_path / "a.bin")
    weights = write_peft_adapter(tmp_path) / WEIGHTS
    whole = weights.read_bytes()
    for cut in (0, 4, 40, len(whole) - 1):
        weights.write_bytes(whole[:cut])
        with pytest.raises(AdapterUnreadableError):
            check(tmp_path)
    with weights.open("r+b") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(AdapterUnreadableError, match="an adapter may have"):
        check(tmp_path)


def test_a_tensor_that_is_no_low_rank_matrix_is_refused(tmp_path: Path) -> None:
    weights = write_peft_adapter(tmp_path) / WEIGHTS
    tensors = safetensors.numpy.load_file(weights)
    one = next(iter(tensors))
    for changed, message in (
        ({**tensors, "base_model.model.lm_head.weight": tensors[one]}, "no matrix of a low-rank adapter"),
        ({name: each for name, each in tensors.items() if name != one}, "must have two matrices"),
        ({**tensors, one: tensors[one].astype("float64")}, "must be a matrix of BF16, F16, F32"),
    ):
        safetensors.numpy.save_file(changed, weights)
        with pytest.raises(AdapterUnreadableError, match=message):
            check(tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 5000])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    write_peft_adapter(tmp_path)
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(AdapterUnreadableError, match="is no JSON"):
        check(tmp_path)
