"""Language models without weights: the engine initializes them at random from a configuration."""

import json
from pathlib import Path
from typing import Any, Final

# The published configuration of Llama 3.1 8B.
LLAMA_8B: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 128_000,
    "eos_token_id": [128_001, 128_008, 128_009],
    "dtype": "bfloat16",
}
# The same, small enough to run on a CPU.
TINY: Final[dict[str, Any]] = LLAMA_8B | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "dtype": "float32",
}


def write(directory: Path, shape: dict[str, Any]) -> Path:
    """Write the configuration to the directory, as a model's directory has it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(shape, indent=2))
    return directory
