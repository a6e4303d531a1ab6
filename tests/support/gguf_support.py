"""GGUF files for tests: the small real model, and tiny ones with random weights that split text as wanted."""

import functools
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer as Trainable
from tokenizers import models, pre_tokenizers, trainers

from cli.stack.servers.llama_options import bundled_gguf
from jobs.prompts.gguf import Gguf

_WIDTH = 32
_CONTEXT = 512
# Letters of both cases, digits, signs, white space; letters without case; everything else.
_ASCII: list[str] = [*map(chr, range(32, 127)), "\n", "\r\n", "\t", "  ", "'s", "'LL", " 2026 "]
# Two neighbours may make one of these in more than one way.
_REPEATING = [
    "ab",
    "ba",
    "aba",
    "bab",
    "abab",
    "ababa",
    "ababab",
    "aa",
    "aaa",
    "aaaa",
    "aaaaa",
    "--",
    "---",
    "----",
    "▁▁",
    "▁▁▁",
]
_CASELESS: list[str] = [*"和平希望한국어あいうカタカナ", "。", "、"]


@functools.cache
def smollm2() -> Gguf:
    """The small model's header."""
    return Gguf.read(bundled_gguf())


def write_tiny_model(file: Path, *, pre: str, **keys: str) -> Path:
    """A model of one random layer with SmolLM2's vocabulary, split as `pre` says."""
    real, writer = smollm2(), _tiny_writer(file)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(real.texts("tokenizer.ggml.tokens"))
    writer.add_token_merges(real.texts("tokenizer.ggml.merges"))
    writer.add_token_types([int(kind) for kind in real.numbers("tokenizer.ggml.token_type")])
    for key, value in keys.items():
        writer.add_string(key.replace("__", "."), value)
    return _written(writer, file, num_tokens=len(real.texts("tokenizer.ggml.tokens")))


def write_sentencepiece_model(
    file: Path, text: str, *, adds_space: bool = True, user_defined: Sequence[str] = ()
) -> Path:
    """A model of one random layer with pieces learned from a text, and some that repeat themselves."""
    learned = Trainable(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    learned.train_from_iterator(text.splitlines(), trainers.BpeTrainer(vocab_size=1500, show_progress=False))
    vocabulary = learned.get_vocab()
    ranked = sorted(vocabulary, key=vocabulary.__getitem__)
    pieces = [each for each in dict.fromkeys([*ranked, *_REPEATING]) if each not in user_defined]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *user_defined]
    writer = _tiny_writer(file)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    scores = [-float(rank) for rank in range(len(pieces))]
    writer.add_token_scores([0.0] * 259 + scores + [-1000.0] * len(user_defined))
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(pieces), *[4] * len(user_defined)])
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(adds_space)
    return _written(writer, file, num_tokens=len(tokens))


def _tiny_writer(file: Path) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return writer


def _written(writer: gguf.GGUFWriter, file: Path, *, num_tokens: int) -> Path:
    _add_weights(writer, num_tokens=num_tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_weights(writer: gguf.GGUFWriter, *, num_tokens: int) -> None:
    rng = np.random.default_rng(1)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(_WIDTH, dtype=np.float32))
    for name in square:
        writer.add_tensor(f"blk.0.{name}.weight", rng.normal(size=(_WIDTH, _WIDTH)).astype(np.float16))
    writer.add_tensor("token_embd.weight", rng.normal(size=(num_tokens, _WIDTH)).astype(np.float16))


def random_texts(number: int, *, seed: int, any_character: bool) -> list[str]:
    """Texts of up to 150 parts.

    Args:
        number: how many.
        seed: of their choice.
        any_character: of all of Unicode 14, as not everyone knows later letters; otherwise ASCII and letters
            without case.
    """
    chosen = random.Random(seed)  # noqa: S311 no secret

    def part() -> str:
        if chosen.random() < 0.7:
            return chosen.choice(_ASCII)
        if not any_character:
            return chosen.choice(_CASELESS)
        low, high = chosen.choice([(0xA0, 0x2FFF), (0x3000, 0xD7FF), (0xE000, 0x1FFFF)])
        found = chr(chosen.randint(low, high))
        return found if unicodedata.category(found) != "Cn" else part()

    return ["".join(part() for _ in range(chosen.randint(1, 150))) for _ in range(number)]
