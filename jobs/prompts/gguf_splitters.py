"""How a byte-level tokenizer in a GGUF file splits text: the file names it by `tokenizer.ggml.pre` alone.

The patterns are those of the models' own tokenizer.json. llama.cpp approximates `_TEKKEN` and `_GPT4O`: where
small letters precede capital ones that are not ASCII, it does not split. It normalizes no text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split

from jobs.prompts.tokenizer_files import LLAMA3_PATTERN

_QWEN2: Final = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
# Combining marks belong to words.
_QWEN35: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}{_REST}"
)
_SUFFIX: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    rf"|\p{{N}}{{1,3}}{_REST}"
)
# One after another.
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)


@dataclass(frozen=True, slots=True)
class TokenSplitter:
    """How texts are split before byte pairs are merged.

    Attributes:
        patterns: applied one after another; each match is a part of its own. None: GPT-2's own pattern.
        single_digits: split every digit off first.
        ignores_merges: a part that is a token is taken as it is.
        adds_bos: a text begins with a token of its own, where the file says nothing else.
    """

    patterns: tuple[str, ...] | None = None
    single_digits: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """Build it."""
        digits = [Digits(individual_digits=True)] if self.single_digits else []
        if self.patterns is None:
            return pre_tokenizers.Sequence([*digits, ByteLevel(add_prefix_space=False, use_regex=True)])
        splits = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        spelled = ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*digits, *splits, spelled])


_TABLE: Final[Mapping[TokenSplitter, str]] = {
    TokenSplitter(): "gpt-2 phi-2 olmo mpt jais exaone4 gigachat mellum trillion",
    TokenSplitter(single_digits=True): "smollm starcoder refact command-r codeshell exaone minerva-7b",
    TokenSplitter((LLAMA3_PATTERN,), ignores_merges=True, adds_bos=True): (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2"
    ),
    TokenSplitter((LLAMA3_PATTERN,)): "dbrx smaug-bpe chatglm-bpe glm4",
    TokenSplitter((_QWEN2,)): "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo solar-open grok-2",
    TokenSplitter((_QWEN35,)): "qwen35",
    TokenSplitter((_TEKKEN,), ignores_merges=True, adds_bos=True): "tekken",
    TokenSplitter((_GPT4O,)): "gpt-4o llama4 kanana2",
    TokenSplitter(_DEEPSEEK3): "deepseek-v3 hunyuan-dense joyai-llm",
}
# By the value of `tokenizer.ggml.pre`.
SPLITTERS: Final[Mapping[str, TokenSplitter]] = {
    name: splitter for splitter, names in _TABLE.items() for name in names.split()
}
