"""The speaker of fault tests: text that anyone can compute from the prompt, with seeded faults on the way.

It is certain of every token, so that requests that sample get the same text.
`expected_text` needs nothing but the standard library, so a test loads this file by its path.
"""

import hashlib
from array import array
from collections.abc import Iterable
from random import Random

# Letters of one to four UTF-8 bytes, so that some characters are spread over several tokens.
_WORDS = """
amber basin copper delta ember fjord granite harbor island juniper kernel lantern meadow nectar orchid
prairie quartz river summit timber umber valley willow xenon yonder zephyr café naïve über łódź søster
ελπίδα надежда 希望 平和 こんにちは 🜂🜁 🌲 नमस्ते
"""
MIN_WORDS, MAX_WORDS = 20, 200


def expected_text(prompt_ids: Iterable[int]) -> str:
    """The whole answer to a prompt that ends with the assistant's header."""
    random = Random(digest(prompt_ids))  # noqa: S311 reproducible on purpose
    words = random.choices(_WORDS.split(), k=random.randint(MIN_WORDS, MAX_WORDS))
    return " ".join(words) + "."


def digest(prompt_ids: Iterable[int]) -> str:
    """SHA-256 of the ids as little-endian int32, in hexadecimal."""
    return hashlib.sha256(array("i", prompt_ids).tobytes()).hexdigest()
