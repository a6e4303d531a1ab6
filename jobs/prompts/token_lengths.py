"""Token lengths of a byte-level vocabulary: token boundaries, and a lower bound on a text's token count."""

from typing import Final

import numpy as np
import numpy.typing as npt
import tokenizers

from jobs.prompts.token_bytes import BYTES_OF_CHARACTERS

_NUM_BYTES: Final = 256
# Texts are read in blocks of this size, so that the UTF-8 copy stays small.
_BLOCK_CHARS: Final = 65_536


class TokenLengths:
    """The token lengths of a byte-level tokenizer's vocabulary.

    Attributes:
        of_bytes: length of each token in bytes, indexed by token id.
        longest: length of the longest token, in bytes.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        if not set("".join(vocabulary)) <= BYTES_OF_CHARACTERS.keys():  # some tokens do not spell bytes
            known = BYTES_OF_CHARACTERS.keys()
            vocabulary = {piece: number for piece, number in vocabulary.items() if set(piece) <= known}
        num = len(vocabulary)
        ids = np.fromiter(vocabulary.values(), dtype=np.int64, count=num)
        lengths = np.fromiter(map(len, vocabulary), dtype=np.int32, count=num)
        self.of_bytes = np.zeros(ids.max(initial=-1) + 1, dtype=np.int32)
        self.of_bytes[ids] = lengths
        self.longest = int(lengths.max(initial=0))
        self._groups = _byte_groups()
        self._most = _most_in_a_token("".join(vocabulary), lengths, self._groups)

    def least_tokens(self, text: str) -> int:
        """Return a lower bound on the text's tokens, far cheaper than encoding it.

        For each kind of byte (digits, letters, first bytes of emoji, …), no token holds more than the token
        richest in that kind. The kind that needs the most tokens sets the bound, so runs of blanks, whose
        tokens are by far the longest, weaken only the bound for blanks.
        """
        counts = np.zeros(_NUM_BYTES, dtype=np.int64)
        for start in range(0, len(text), _BLOCK_CHARS):
            block = np.frombuffer(text[start : start + _BLOCK_CHARS].encode(), dtype=np.uint8)
            counts += np.bincount(block, minlength=_NUM_BYTES)
        return int(np.ceil((self._groups @ counts) / self._most).max())


def _byte_groups() -> npt.NDArray[np.int64]:
    """Return one row per kind of byte, with 1 for each byte of that kind."""
    kinds = [
        b"\t\n\r",
        bytes(range(0x30, 0x3A)),
        bytes([*range(0x41, 0x5B), *range(0x61, 0x7B)]),
        bytes([*range(0x21, 0x30), *range(0x3A, 0x41), *range(0x5B, 0x61), *range(0x7B, 0x7F)]),
        bytes(range(0xC2, 0xE0)),  # first bytes of two-byte characters
        bytes(range(0xE4, 0xEA)),  # … of kanji
        bytes(range(0xE0, 0xF0)),  # … of three bytes
        bytes(range(0xF0, 0xF5)),  # … of four bytes
        bytes(each for each in range(_NUM_BYTES) if each not in b" \t\n\r"),
    ]
    groups = np.zeros((len(kinds), _NUM_BYTES), dtype=np.int64)
    for row, kind in enumerate(kinds):
        groups[row, list(kind)] = 1
    return np.vstack([groups, np.eye(_NUM_BYTES, dtype=np.int64)])


def _most_in_a_token(
    joined: str, lengths: npt.NDArray[np.int32], groups: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return, for each group, the most of its bytes that one token holds; at least 1."""
    most = np.ones(len(groups), dtype=np.int64)
    bytes_of = {ord(character): byte for character, byte in BYTES_OF_CHARACTERS.items()}
    spelled = np.frombuffer(joined.translate(bytes_of).encode("latin-1"), dtype=np.uint8)
    token = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    for row, group in enumerate(groups[:-_NUM_BYTES]):
        most[row] = max(1, np.bincount(token, weights=group[spelled]).max(initial=0))
    found, counts = np.unique(token * _NUM_BYTES + spelled, return_counts=True)
    np.maximum.at(most, len(groups) - _NUM_BYTES + found % _NUM_BYTES, counts)
    return most
