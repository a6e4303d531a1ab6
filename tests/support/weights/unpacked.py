"""A Llama of a GGUF file as Hugging Face writes models: its weights as float32, with its tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

from jobs.prompts.gguf import Gguf
from jobs.prompts.gguf_tokenizer import ensure_gguf_tokenizer

Matrix = npt.NDArray[np.float32]

_OF_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def unpack(file: Path, into: Path) -> Path:
    """Write the file's model into the directory, and its tokenizer beside it."""
    gguf = Gguf.read(file)
    heads = {"attn_q": _number(gguf, "attention.head_count")}
    heads["attn_k"] = _number(gguf, "attention.head_count_kv")
    weights = {}
    for tensor in GGUFReader(file).tensors:
        part = tensor.name.split(".")[-2]
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        weights[_name(tensor.name)] = _halves(values, heads[part]) if part in heads else values
    into.mkdir(parents=True, exist_ok=True)
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    (into / "config.json").write_text(json.dumps(_config(gguf, is_tied="lm_head.weight" not in weights)))
    tokenizer = ensure_gguf_tokenizer(gguf, into.with_name(f"{into.name}-tokenizer"))
    shutil.copytree(tokenizer, into, dirs_exist_ok=True)
    return into


def _name(name: str) -> str:
    match name.split("."):
        case ["blk", layer, part, "weight"]:
            return f"model.layers.{layer}.{_OF_LAYER[part]}.weight"
        case [part, "weight"]:
            return f"{_OUTSIDE[part]}.weight"
    raise ValueError(name)


def _halves(weight: Matrix, num_heads: int) -> Matrix:
    """Order each head's rows by halves: llama.cpp turns neighbours together, Hugging Face one of each."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _config(gguf: Gguf, *, is_tied: bool) -> dict[str, object]:
    width, num_heads = _number(gguf, "embedding_length"), _number(gguf, "attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(gguf.texts("tokenizer.ggml.tokens")),
        "hidden_size": width,
        "intermediate_size": _number(gguf, "feed_forward_length"),
        "num_hidden_layers": _number(gguf, "block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _number(gguf, "attention.head_count_kv"),
        "head_dim": width // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": gguf.context_length,
        "rms_norm_eps": gguf.values["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": gguf.values["llama.rope.freq_base"],
        "bos_token_id": gguf.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.number("tokenizer.ggml.eos_token_id"),
        "tie_word_embeddings": is_tied,
        "torch_dtype": "float32",
    }


def _number(gguf: Gguf, key: str) -> int:
    found = gguf.number(f"llama.{key}")
    assert found is not None, key
    return found
