"""Tiny models, what transformers makes of them, and the transformers engine for them; needs torch."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cli.stack.servers.transformers_options import TransformersOptions
from local_engine import RunningEngine

POSITIONS = 4096


class Reference:
    """The same model in this process, and what it says by itself."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._model: Any = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        said = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return list(said[0, len(prompt) :].tolist())


def tiny_model(directory: Path, **changed: Any) -> Reference:  # noqa: ANN401  any value of the configuration
    """A random Llama; its weights are large, so that different prompts bring different answers."""
    chosen: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig(**chosen | changed)).save_pretrained(directory)
    return Reference(directory)


def options(model: Reference, **changed: Any) -> TransformersOptions:  # noqa: ANN401  any of the options
    """A pool of 4096 tokens in blocks of 16, not shared; prompts go in chunks of 128."""
    chosen: dict[str, Any] = {
        "model_dir": model.directory,
        "device": "cpu",
        "dtype": "float32",
        "kv_cache_tokens": 4096,
        "tokens_per_block": 16,
        "max_input_len": 3000,
        "max_seq_len": POSITIONS,
        "max_num_tokens": 128,
        "kv_cache_reuse": False,
    }
    return TransformersOptions(**chosen | changed)


def generating_process(engine: RunningEngine) -> int:
    """The process that holds the model: a child of Triton's stub."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = status.read_bytes().split(b"\0")
            pid = int(status.parent.name)
            if b"1.generating" in words and Path(f"/proc/{pid}/cwd").resolve().is_relative_to(
                engine.launch.cwd
            ):
                return pid
    raise AssertionError("no process generates")
