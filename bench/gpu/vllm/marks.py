"""Models without weights for vLLM: published shapes, and the marks that set the length of each answer."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.gpu.shapes import LLAMA_8B
from bench.stand.documents import Author
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory

END_ID: Final = 128_009  # Llama 3.1's <|eot_id|>
# The published dimensions of Qwen2.5 32B with Llama's layers and vocabulary: 256 KiB of KV a token.
DENSE_32B: Final[dict[str, Any]] = LLAMA_8B | {
    "hidden_size": 5120,
    "intermediate_size": 27_648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
}
_OF_CURRENT: Final[dict[str, Any]] = {
    "dtype": "bfloat16",
    "vocab_size": LLAMA_8B["vocab_size"],  # of the prompts
    "bos_token_id": LLAMA_8B["bos_token_id"],
    "eos_token_id": LLAMA_8B["eos_token_id"],
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "max_position_embeddings": 131_072,
}
# OpenAI's gpt-oss 20B as published: every other layer has a window of 128 tokens.
GPT_OSS_20B: Final[dict[str, Any]] = _OF_CURRENT | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150_000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}
# Google's Gemma 3 12B as published, text alone: five of six layers have a window of 1,024 tokens.
GEMMA_3_12B: Final[dict[str, Any]] = _OF_CURRENT | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "attention_bias": False,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3840,
    "intermediate_size": 15_360,
    "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(48)],
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1_000_000.0,
    "sliding_window": 1024,
    "tie_word_embeddings": True,
}
# Qwen3-Next 80B with 12 of its 48 layers, which fit one card: three of four layers keep a recurrent state.
QWEN3_NEXT: Final[dict[str, Any]] = _OF_CURRENT | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 12,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000_000,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
}
SHAPES: Final = {
    "8b": LLAMA_8B,
    "32b": DENSE_32B,
    "gpt-oss-20b": GPT_OSS_20B,
    "gemma-3-12b": GEMMA_3_12B,
    "qwen3-next": QWEN3_NEXT,
}


@dataclass(frozen=True, slots=True)
class Marks:
    """How `[[tokens=N]]` in a prompt looks as token ids.

    Attributes:
        head: ids before the number.
        close: id after the number.
        suffix: ids between the mark and the prompt's end.
        digits: text of each id that the number may consist of.
        allowed: ids that answers consist of.
        end: id that ends an answer.
    """

    head: list[int]
    close: int
    suffix: int
    digits: dict[int, str]
    allowed: list[int]
    end: int = END_ID


def find_marks(author: Author) -> Marks:
    """Read the marks from the tokenizer that writes the prompts."""
    mark = author.tokenizer.encode_text(" [[tokens=1234]]").tolist()
    numbers = [f"{number:0{width}d}" for width in (1, 2, 3) for number in range(10**width)]
    encoded = {text: author.tokenizer.encode_text(f"={text}]]").tolist() for text in numbers}
    return Marks(
        head=mark[:3],
        close=mark[-1],
        suffix=author.num_ids_after_mark,
        digits={ids[1]: text for text, ids in encoded.items() if len(ids) == 3},
        allowed=author.word_ids,
    )


def main() -> None:
    """Write `marks.json` and one model directory for each shape into a folder."""
    folder = Path(sys.argv[1])
    author = Author(Tokenizer.load(str(tokenizer_directory(None))))
    (folder / "marks.json").write_text(json.dumps(asdict(find_marks(author))))
    for name, shape in SHAPES.items():
        (folder / f"model-{name}").mkdir(exist_ok=True)
        (folder / f"model-{name}" / "config.json").write_text(json.dumps(shape, indent=1))


if __name__ == "__main__":
    main()
