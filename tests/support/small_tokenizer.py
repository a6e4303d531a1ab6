"""A tokenizer of 400 tokens that loads in milliseconds; that of Llama 3 takes a second."""

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

CORPUS = ["the quick brown fox jumps over the lazy dog", "<s> </s> <think>", "user assistant system\n\n"] * 20
# The end token is rstrip, as in Phi-3; <think> is an added token that is not special, as in Qwen 3.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n<think>{% generation %}{% endgeneration %}{% endif %}"
)
CONTROLS = ["<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<think>"]


def byte_level(directory: Path, *, template: str | None = TEMPLATE) -> Path:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    special = [
        AddedToken(text, special=True, normalized=False, rstrip=text.startswith("<|"))
        for text in CONTROLS[:5]
    ]
    backend.add_special_tokens(special)
    backend.add_tokens(
        [AddedToken("<think>", special=False, normalized=False), AddedToken("   ", special=False)]
    )
    save(backend, directory, template, bos="<s>", eos="<|end|>")
    return directory


def save(backend: tokenizers.Tokenizer, directory: Path, template: str | None, *, bos: str, eos: str) -> None:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos)
    fast.chat_template = template
    fast.save_pretrained(directory)
