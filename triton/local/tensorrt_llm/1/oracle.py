"""The text of fault tests, which any test can compute from the prompt.

Every token is certain, so requests that sample get the same text.
`expected_text` needs only the standard library, so a test loads this file by its path.
"""

import hashlib
from array import array
from collections.abc import Iterable
from random import Random

# Letters of one to four UTF-8 bytes, so that some characters span several tokens.
_WORDS = """
amber basin copper delta ember fjord granite harbor island juniper kernel lantern meadow nectar orchid
prairie quartz river summit timber umber valley willow xenon yonder zephyr café naïve über łódź søster
ελπίδα надежда 希望 平和 こんにちは 🜂🜁 🌲 नमस्ते
"""
MIN_WORDS, MAX_WORDS = 20, 200


def expected_text(prompt_ids: Iterable[int]) -> str:
    """Compute the whole answer to a prompt that ends with the assistant's header."""
    random = Random(digest(prompt_ids))  # noqa: S311 reproducible on purpose
    words = random.choices(_WORDS.split(), k=random.randint(MIN_WORDS, MAX_WORDS))
    return " ".join(words) + "."


def digest(prompt_ids: Iterable[int]) -> str:
    """Return the SHA-256 of the ids as little-endian int32, in hexadecimal."""
    return hashlib.sha256(array("i", prompt_ids).tobytes()).hexdigest()
