"""A tiny random model, what transformers makes of it, and the engine's options for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from cli.stack.transformers_options import TransformersOptions

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


def options(model: Reference, **changed: Any) -> TransformersOptions:  # noqa: ANN401  any of the options
    """A pool of 4096 tokens in blocks of 16; prompts go in chunks of 128."""
    chosen: dict[str, Any] = {
        "model_dir": model.directory,
        "device": "cpu",
        "dtype": "float32",
        "kv_cache_tokens": 4096,
        "tokens_per_block": 16,
        "max_input_len": 3000,
        "max_seq_len": POSITIONS,
        "max_num_tokens": 128,
    }
    return TransformersOptions(**chosen | changed)
