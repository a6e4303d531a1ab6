"""A SentencePiece vocabulary of a GGUF file (`tokenizer.ggml.model = llama`) as a Hugging Face tokenizer.

llama.cpp begins with single characters and joins, again and again, the two neighbours whose piece has the
highest score, the leftmost ones first. Byte pairs with a list of merges do the same where the merges are
sorted by the score of what they make. What is in no piece becomes its bytes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from tokenizers import Tokenizer, decoders, models, normalizers

from jobs.prompts.gguf import Gguf, GgufError

_META_SPACE: Final = "\u2581"
# Of tokenizer.ggml.token_type. llama.cpp joins text to unused pieces too.
_NORMAL, _UNUSED, _BYTE = 1, 5, 6
# What other kinds of vocabularies need, of which llama.cpp reads the text in ways of their own.
ADVICE: Final = (
    "serve it with llama.cpp yourself, with LONGBATCH_ENGINE__URL naming the server and"
    " LONGBATCH_TOKENIZER__PATH the directory of the model's tokenizer.json"
)


def piece_tokenizer(gguf: Gguf) -> Tokenizer:
    """Build the tokenizer, without its control tokens. Text never becomes one of those.

    Raises:
        GgufError: llama.cpp's pieces cannot be told exactly.
    """
    tokens, kinds = gguf.texts("tokenizer.ggml.tokens"), gguf.numbers("tokenizer.ggml.token_type")
    scores = gguf.numbers("tokenizer.ggml.scores")
    if not len(tokens) == len(kinds) == len(scores):
        raise _unsupported(gguf, "tokens, types and scores are not as many as each other")
    if sum(kind == _BYTE for kind in kinds) < 256:
        raise _unsupported(gguf, "there is not a token for every byte")
    pieces = {
        token: score
        for token, kind, score in zip(tokens, kinds, scores, strict=True)
        if kind in {_NORMAL, _UNUSED}
    }
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    unknown = gguf.number("tokenizer.ggml.unknown_token_id")
    pairs = models.BPE(
        vocab=vocabulary,
        merges=_merges(gguf, pieces),
        unk_token=tokens[unknown] if unknown is not None and 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(pairs)
    adds_space = gguf.flag("tokenizer.ggml.add_space_prefix", default=True)
    spaces = normalizers.Replace(" ", _META_SPACE)
    bytes_to_text = [decoders.Replace(_META_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_META_SPACE), spaces])
        bytes_to_text.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(bytes_to_text)
    return tokenizer


def _merges(gguf: Gguf, pieces: Mapping[str, float]) -> list[tuple[str, str]]:
    """List the pairs that make a piece, those of the highest score first."""
    if strange := {character for piece in pieces for character in piece} - set(pieces):
        raise _unsupported(gguf, f"the character {min(strange)!r} of a piece is no piece itself")
    made = {piece: found for piece in pieces if (found := [*_splits(piece, pieces)])}
    (score, number), *_ = Counter(pieces[piece] for piece in made).most_common(1) or [(0.0, 0)]
    if number > 1:
        raise _unsupported(gguf, f"{number} pieces have the same score {score}")
    by_score = sorted(made, key=lambda piece: pieces[piece], reverse=True)
    return [(piece[:at], piece[at:]) for piece in by_score for at in made[piece]]


def _splits(piece: str, pieces: Mapping[str, float]) -> Iterator[int]:
    """Yield where two pieces make this one, the pair first that is left of another one in the same text.

    In `ababa` both `ab`, `a` and `a`, `ba` make `aba`. Of two pairs that share their middle, as in `ab`, `a`,
    `ba`, the left one ends where the piece repeats itself.
    """
    found = [at for at in range(1, len(piece)) if piece[:at] in pieces and piece[at:] in pieces]
    yield from sorted(found, key=lambda at: (not piece.startswith(piece[at:]), -at))


def _unsupported(gguf: Gguf, reason: str) -> GgufError:
    return GgufError(
        f"{gguf.path} has a SentencePiece vocabulary that cannot be read exactly: {reason}. {ADVICE}."
    )
