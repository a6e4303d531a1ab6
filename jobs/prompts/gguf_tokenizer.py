"""A Hugging Face tokenizer built from a GGUF file's keys, with the model's chat template and end tokens."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models

from jobs.prompts.gguf import Gguf, GgufError
from jobs.prompts.gguf_pieces import ADVICE, piece_tokenizer
from jobs.prompts.gguf_splitters import SPLITTERS, TokenSplitter

# Part of the directory's name: raise it when the same file would be built differently.
_BUILD_VERSION: Final = 2
# Of tokenizer.ggml.model.
_PAIRS, _PIECES = "gpt2", "llama"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # of tokenizer.ggml.token_type
# llama.cpp ends an answer at each of these, whatever the file names as its end token.
_END_TEXTS: Final = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<eos>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "<|tool_response>", "[e~[",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<reponame>",
})  # fmt: skip
# With all tokens of a set, the other one ends no answer.
_NO_ENDS: Final = (
    (frozenset({"<|return|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|calls|>", "<|flush|>"}), "<|end|>"),
    (frozenset({"<|tool_response>"}), "</s>"),
)
_NAMED: Final = {"eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def ensure_gguf_tokenizer(gguf: Gguf, parent: Path) -> Path:
    """Build the file's tokenizer below `parent`, unless it is there, and return its directory.

    Raises:
        GgufError: this kind of tokenizer cannot be built; the message names it.
    """
    keys = {key: value for key, value in gguf.values.items() if key.startswith("tokenizer.")}
    content = hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]
    final = parent / f"gguf-{_BUILD_VERSION}-{content}"
    if (final / "tokenizer.json").is_file():
        return final
    parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
    try:
        _write(gguf, building)
        building.chmod(0o755)
        building.rename(final)
    except OSError:
        if not (final / "tokenizer.json").is_file():  # another process may have been faster
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return final


def end_ids(gguf: Gguf) -> list[int]:
    """List every token at which llama.cpp ends an answer, the file's own end token first."""
    tokens = gguf.texts("tokenizer.ggml.tokens")
    texts = _END_TEXTS.intersection(tokens)
    for all_of, no_end in _NO_ENDS:
        if all_of <= texts:
            texts -= {no_end}
    named = [gguf.number(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    by_text = [token_id for token_id, token in enumerate(tokens) if token in texts]
    valid = [each for each in named if each is not None and 0 <= each < len(tokens)]
    return list(dict.fromkeys([*valid, *by_text]))


def _write(gguf: Gguf, into: Path) -> None:
    tokens = gguf.texts("tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        raise GgufError(f"{gguf.path} has the same token twice (tokenizer.ggml.tokens).")
    if gguf.text("tokenizer.ggml.model") == _PIECES:
        tokenizer, adds_bos = piece_tokenizer(gguf), True
    else:
        splitter = _splitter(gguf)
        tokenizer, adds_bos = _pair_tokenizer(gguf, splitter), splitter.adds_bos
    _add_tokens(tokenizer, gguf)
    tokenizer.save(str(into / "tokenizer.json"))
    config = _config(gguf, adds_bos=gguf.flag("tokenizer.ggml.add_bos_token", default=adds_bos))
    _write_json(into / "tokenizer_config.json", config)
    _write_json(into / "generation_config.json", {"eos_token_id": end_ids(gguf)})


def _splitter(gguf: Gguf) -> TokenSplitter:
    model, name = gguf.text("tokenizer.ggml.model"), gguf.text("tokenizer.ggml.pre") or "nothing"
    if model != _PAIRS:
        raise GgufError(
            f"{gguf.path} has a tokenizer of the kind {model!r} (tokenizer.ggml.model); only {_PAIRS!r}, byte"
            f" pairs, and {_PIECES!r}, SentencePiece, are supported. {ADVICE}."
        )
    if name not in SPLITTERS:
        raise GgufError(
            f"{gguf.path} splits text as {name!r} (tokenizer.ggml.pre), which is not known here. Known:"
            f" {', '.join(sorted(SPLITTERS))}. {ADVICE}."
        )
    return SPLITTERS[name]


def _pair_tokenizer(gguf: Gguf, splitter: TokenSplitter) -> Tokenizer:
    vocabulary = {token: token_id for token_id, token in enumerate(gguf.texts("tokenizer.ggml.tokens"))}
    merges = [_pair(merge) for merge in gguf.texts("tokenizer.ggml.merges")]
    if not merges:
        raise GgufError(f"{gguf.path} has no tokenizer.ggml.merges.")
    try:
        pairs = models.BPE(
            vocab=vocabulary, merges=merges, fuse_unk=False, ignore_merges=splitter.ignores_merges
        )
    except Exception as error:  # the library raises nothing narrower
        raise GgufError(f"{gguf.path} has tokenizer.ggml.merges that cannot be used: {error}.") from error
    tokenizer = Tokenizer(pairs)
    tokenizer.pre_tokenizer = splitter.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, gguf: Gguf) -> None:
    """Add control tokens, which are hidden in answers, and user-defined ones, which are shown."""
    tokens = gguf.texts("tokenizer.ggml.tokens")
    ends = set(end_ids(gguf))
    kinds = gguf.numbers("tokenizer.ggml.token_type")[: len(tokens)]
    controls = {token_id for token_id, kind in enumerate(kinds) if kind in {_UNKNOWN, _CONTROL}} | ends
    shown = {token_id for token_id, kind in enumerate(kinds) if kind == _USER_DEFINED} - controls
    _check_order(gguf, [tokens[each] for each in shown if tokens[each].isspace()])
    tokenizer.add_special_tokens(_added(tokens, controls, special=True))
    tokenizer.add_tokens(_added(tokens, shown, special=False))


def _check_order(gguf: Gguf, spaces: list[str]) -> None:
    """Refuse white space of which llama.cpp reads the longest token first and we the leftmost.

    Runs of one character, as Gemma has, come out the same. Tokens that are seen are not found in text at all.

    Raises:
        GgufError: one of these tokens can begin inside a shorter one.
    """
    for shorter, longer in permutations(spaces, 2):
        is_mixed = len(set(shorter + longer)) > 1 and len(shorter) <= len(longer)
        if is_mixed and any(longer.startswith(shorter[at:]) for at in range(1, len(shorter))):
            raise GgufError(
                f"{gguf.path} has the user-defined tokens {shorter!r} and {longer!r}, which can overlap:"
                f" llama.cpp reads them in an order of its own. {ADVICE}."
            )


def _added(tokens: list[str], ids: Iterable[int], *, special: bool) -> list[AddedToken]:
    return [AddedToken(tokens[each], special=special, normalized=False) for each in sorted(ids)]


def _pair(merge: str) -> tuple[str, str]:
    # A byte-level token holds no space, so the first one separates.
    left, _, right = merge.partition(" ")
    return left, right


def _config(gguf: Gguf, *, adds_bos: bool) -> dict[str, object]:
    tokens = gguf.texts("tokenizer.ggml.tokens")
    template = gguf.text("tokenizer.chat_template")
    found: dict[str, object] = {"model_max_length": gguf.context_length, "add_bos_token": adds_bos}
    if gguf.flag("tokenizer.ggml.add_eos_token", default=False):
        found["add_eos_token"] = True
    named = dict(_NAMED)
    # Without this name, texts get no such token; a template that writes it itself needs the name.
    if adds_bos or "bos_token" in (template or ""):
        named["bos"] = "bos_token"
    for key, name in named.items():
        token_id = gguf.number(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            found[name] = tokens[token_id]
    return found | ({"chat_template": template} if template else {})


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
