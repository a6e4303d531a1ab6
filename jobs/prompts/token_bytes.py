"""The bytes that each token id stands for, so that ids can be turned into text piece by piece."""

import json
import re
from collections.abc import Callable
from typing import Final

import tokenizers

from jobs.errors import LongbatchError

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_META_SPACE: Final = "\u2581"  # how SentencePiece writes a space


class UnsupportedTokenizerError(LongbatchError):
    """The tokenizer's decoder is of a kind whose tokens cannot be turned into bytes one by one."""

    code = "tokenizer_unsupported"


class TokenBytes:
    """The bytes of single tokens, remembered; safe to use from several threads.

    A text is the UTF-8 of its tokens' bytes one after the other. Special tokens and unknown ids have none.

    Attributes:
        drops_first_space: whether a text's first space belongs to no text (SentencePiece puts it in front).
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
        parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
        self._to_bytes = _converter({str(part.get("type")) for part in parts})
        self.drops_first_space = any(_drops_first_space(part) for part in parts)
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        # Added tokens are written as they are. Two threads at worst remember the same bytes: no lock needed.
        self._known = {
            token_id: b"" if token.special else token.content.encode() for token_id, token in added.items()
        }

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            piece = self._backend.id_to_token(token_id) if token_id >= 0 else None
            known = self._known[token_id] = b"" if piece is None else self._to_bytes(piece)
        return known


def _converter(kinds: set[str]) -> Callable[[str], bytes]:
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentence_piece
    raise UnsupportedTokenizerError(details={"decoders": sorted(kinds)})


def _drops_first_space(part: dict[str, object]) -> bool:
    if part.get("type") == "Metaspace":
        return part.get("prepend_scheme", "always") != "never"
    return part.get("type") == "Strip" and part.get("content") == " " and bool(part.get("start"))


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(BYTES_OF_CHARACTERS[character] for character in piece)
    except KeyError:  # as the tokenizers library does: a piece that is no spelling of bytes means itself
        return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    if single := _BYTE_PIECE.fullmatch(piece):
        return bytes.fromhex(single[1])
    return piece.replace(_META_SPACE, " ").encode()


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the other 68 from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTES_OF_CHARACTERS: Final = _bytes_of_characters()
