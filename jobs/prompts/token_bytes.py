"""The bytes of each token id, so that ids can be decoded one at a time."""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import tokenizers

from jobs.errors import LongbatchError

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_META_SPACE: Final = "\u2581"  # SentencePiece's space


class UnsupportedTokenizerError(LongbatchError):
    """The tokenizer's decoder cannot turn tokens into bytes one by one."""

    code = "tokenizer_unsupported"


class TokenBytes:
    """The bytes of single tokens, cached; safe to use from several threads.

    The concatenated bytes of a text's tokens are its UTF-8. Special tokens and unknown ids have no bytes.

    Attributes:
        drops_first_space: whether a decoded text's first space is not part of it (SentencePiece adds one).
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
        parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
        self._to_bytes = _converter({str(part.get("type")) for part in parts})
        self.drops_first_space = any(_drops_first_space(part) for part in parts)
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._names = {token_id: token.content.encode() for token_id, token in added.items()}
        # Added tokens are their own text. At worst two threads cache the same bytes, so no lock is needed.
        self._known = {
            token_id: b"" if token.special else token.content.encode() for token_id, token in added.items()
        }

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            piece = self._backend.id_to_token(token_id) if token_id >= 0 else None
            known = self._known[token_id] = b"" if piece is None else self._to_bytes(piece)
        return known

    def spelled(self, token_id: int) -> bytes:
        """Return the token's bytes; of a special token, which has none, its name."""
        return self[token_id] or self._names.get(token_id, b"")

    def ids_of(self, spelled: bytes) -> Sequence[int]:
        """Return every id with exactly these bytes. The first call reads the whole vocabulary."""
        return self._by_bytes.get(spelled, ())

    @functools.cached_property
    def _by_bytes(self) -> Mapping[bytes, Sequence[int]]:
        found: dict[bytes, list[int]] = {}
        for token_id in range(self._backend.get_vocab_size(with_added_tokens=True)):
            if spelled := self[token_id]:
                found.setdefault(spelled, []).append(token_id)
        return found


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
    except KeyError:  # as in the tokenizers library: a piece that does not spell bytes is literal
        return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    if single := _BYTE_PIECE.fullmatch(piece):
        return bytes.fromhex(single[1])
    return piece.replace(_META_SPACE, " ").encode()


def _bytes_of_characters() -> dict[str, int]:
    """Return GPT-2's spelling of bytes: printable Latin-1, 68 others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTES_OF_CHARACTERS: Final = _bytes_of_characters()
