"""Transformers engines on real Triton servers, over a tiny random model that is made here."""

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from local_engine import RunningEngine, running_engine
from torch_support import POSITIONS, Reference, options


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A Llama of two layers; its weights are large, so that different prompts bring different answers."""
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return Reference(directory)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory, model: Reference) -> Iterator[RunningEngine]:
    """Nothing runs on it when a test begins."""
    with running_engine(tmp_path_factory.mktemp("engine"), options(model)) as running:
        yield running
