"""The oracle: what a scripted engine answers to a prompt, and the prompts by which it recognizes a job."""

import hashlib
from collections.abc import Sequence
from typing import Final

NUM_DIGITS: Final = 6
# In the byte-pair vocabulary that the workers use by default, printable ASCII characters are the first ids.
_FIRST: Final = ord("!")
_SPACE: Final = 220
_DIGITS: Final = range(ord("0") - _FIRST, ord("9") - _FIRST + 1)


def prompt_of(mark: int, *, words: int = 0) -> str:
    """Write a prompt that carries the mark, digit by digit, and about as many more tokens as `words`."""
    digits = " ".join(f"{mark:0{NUM_DIGITS}}")
    return f"mark {digits} end" + " word" * words


def mark_in(ids: Sequence[int]) -> int | None:
    """Find the mark in a prompt of token ids; None if it has none."""
    found: list[int] = []
    place = 0
    while place + 1 < len(ids) and len(found) < NUM_DIGITS:
        if ids[place] == _SPACE and ids[place + 1] in _DIGITS:
            found.append(ids[place + 1] - _DIGITS.start)
            place += 2
        else:
            found.clear()
            place += 1
    return int("".join(map(str, found))) if len(found) == NUM_DIGITS else None


def text_of(mark: int, length: int, *, version: int = 0) -> str:
    """Return the answer to a mark: lower-case letters, one token each.

    Args:
        mark: of the prompt.
        length: tokens.
        version: other versions begin with another letter; only a test of fences answers twice.
    """
    seed = f"{mark} {version}".encode()
    numbers = hashlib.shake_128(seed).digest(length)
    letters = [chr(ord("a") + each % 26) for each in numbers]
    if letters:
        letters[0] = chr(ord("a") + version % 26)
    return "".join(letters)


def ids_of(text: str) -> list[int]:
    """Return the token ids of an answer."""
    return [ord(each) - _FIRST for each in text]


def num_given(ids: Sequence[int], answer: Sequence[int]) -> int:
    """Count the tokens of the answer with which a prompt ends: a job that goes on sends them back."""
    for size in range(min(len(ids), len(answer)), 0, -1):
        if list(ids[-size:]) == list(answer[:size]):
            return size
    return 0
