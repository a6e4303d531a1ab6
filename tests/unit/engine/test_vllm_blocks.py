"""What a sequence takes of vLLM's pool besides its text, from the dimensions of published models."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.engine import model_config
from cli.engine.hardware import GPUS
from cli.engine.model_families import completed
from cli.engine.vllm_blocks import VllmSequence, default_batched_tokens, sequence_of
from longbatch.cli.main import application

_WINDOWS = ["sliding_attention", "full_attention"]
# The values of published files that layers depend on; Gemma's and Llama's name no types of layers.
_MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
    },
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "layer_types": _WINDOWS * 12},
    "gemma-3-27b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "sliding_window": 1024,
        },
    },
    "llama-4-scout": {"model_type": "llama4", "text_config": {"num_hidden_layers": 48}},
    "mistral-7b-v0.1": {
        "model_type": "mistral",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "sliding_window": 4096,
    },
    "deepseek-v3.2": {"model_type": "deepseek_v32", "num_hidden_layers": 61, "num_attention_heads": 128},
}


def sequence(name: str, *, longest: int = 131_072, batched: int = 8192) -> VllmSequence:
    layout = model_config.layout_of(completed(_MODELS[name]))
    return sequence_of(layout, width=2, longest=longest, max_num_batched_tokens=batched)


# Computed by vLLM's own classes, in blocks of 16 and with 8192 tokens in an iteration.
@pytest.mark.parametrize(
    ("name", "one_batch", "two_batches"),
    [
        ("llama-3.1-8b", 0, 0),
        ("gpt-oss-20b", 521, 1033),
        ("gemma-3-27b", 3462, 6534),
        ("llama-4-scout", 3072, 4608),
        ("deepseek-v3.2", 0, 0),
    ],
)
def test_the_constant_of_published_models_is_vllm_s(name: str, one_batch: int, two_batches: int) -> None:
    found = sequence(name)
    assert found.tokens_per_block == 16
    assert (found.blocks_with_one_batch, found.blocks_per_sequence) == (one_batch, two_batches)


# The windows, and one block where a window begins within one; recurrent layers keep both states.
@pytest.mark.parametrize(
    ("name", "kept"), [("llama-3.1-8b", 0), ("gpt-oss-20b", 1 * (9 + 1)), ("gemma-3-27b", 6 * (65 + 1))]
)
def test_a_sequence_keeps_its_windows_once_its_prompt_is_read(name: str, kept: int) -> None:
    assert sequence(name).kept_blocks == kept


def test_a_short_context_and_small_iterations_make_the_constant_smaller() -> None:
    assert sequence("gpt-oss-20b", longest=2048).blocks_per_sequence == 2048 // 16 + 1
    assert sequence("gpt-oss-20b", batched=2048).blocks_with_one_batch == -(-(127 + 2048) // 16) + 1


def test_a_model_whose_layers_all_have_a_window_takes_its_window_for_every_sequence() -> None:
    assert sequence("mistral-7b-v0.1").blocks_with_one_batch == -(-(4095 + 8192) // 16) + 1


def test_a_block_is_as_large_as_the_state_of_a_recurrent_layer() -> None:
    config = {"model_type": "qwen3_next", "num_hidden_layers": 48, "num_attention_heads": 16}
    layout = model_config.layout_of(completed(config | {"num_key_value_heads": 2}))
    found = sequence_of(layout, width=2, longest=131_072, max_num_batched_tokens=8192)
    state = 32 * 128 * 128 * 4 + 8192 * 3 * 2
    assert found.tokens_per_block * 2 * 2 * 256 * 2 >= state > (found.tokens_per_block - 16) * 2 * 2 * 256 * 2
    assert found.blocks_per_sequence == 3 * 2, "three groups of recurrent layers, two states each"
    assert found.kept_blocks == 3 * 2


def test_iterations_are_as_large_as_vllm_makes_them_on_each_gpu() -> None:
    found = {name: default_batched_tokens(gpu) for name, gpu in GPUS.items()}
    assert found == {"a6000": 2048, "l40s": 2048, "a100-80": 2048, "h100": 8192, "h200": 8192}


def test_the_command_states_the_constant_and_what_it_assumes(tmp_path: Path) -> None:
    sizes: dict[str, object] = {"hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201_088}
    sizes |= {"max_position_embeddings": 131_072, "num_experts_per_tok": 4, "quantization_config": {"a": 1}}
    (tmp_path / "gpt-oss-20b").mkdir()
    config = tmp_path / "gpt-oss-20b" / "config.json"
    config.write_text(json.dumps(_MODELS["gpt-oss-20b"] | sizes))
    index = {"metadata": {"total_size": 13_761_264_768}, "weight_map": {}}
    (config.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    asked = ["engine", "plan", "--config", str(config), "--gpu", "h100"]
    answer = CliRunner().invoke(application(), asked, env={"COLUMNS": "400"})
    assert answer.exit_code == 0, answer.output
    assert (
        "vLLM would take 1033 blocks of 16 tokens for each sequence besides its text, with"
        " --max-num-batched-tokens 8192; 521 before vLLM 0.26 or without asynchronous scheduling"
    ) in answer.output
    assert (
        "keeps 10 of them once its prompt is read: LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE=10" in answer.output
    )
    answer = CliRunner().invoke(application(), [*asked, "--max-num-batched-tokens", "2048", "--json"])
    assert json.loads(answer.stdout)["vllm"]["blocks_with_one_batch"] == 137
