"""Token ids that a stream left out, restored from their text."""

import pytest
import tokenizers
from tokenizers import decoders, models

from jobs.prompts.token_bytes import BYTES_OF_CHARACTERS, TokenBytes
from jobs.prompts.tokenizer import Tokenizer
from worker.engine.http.spelling import settle


def missing(tokenizer: Tokenizer, ids: list[int]) -> list[int | None]:
    """As llama.cpp streams them: without those after which the text ends inside a character."""
    text = [tokenizer.decode(ids[: n + 1]) for n in range(len(ids))]
    return [None if so_far.endswith("\ufffd") else each for each, so_far in zip(ids, text, strict=True)]


@pytest.mark.parametrize("text", ["🜂", "a🜂b🜄", "नमस्ते 𓀀", "plain"])
def test_what_a_text_spells_is_found_exactly_or_not_at_all(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_text(text).tolist()
    found = settle(missing(tokenizer, ids), text, tokenizer.token_bytes)
    assert found in (ids, None)


def test_one_missing_token_is_always_found(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.token_bytes.ids_of(bytes([byte]))[0] for byte in "é".encode()]
    assert settle([None, ids[1]], "é", tokenizer.token_bytes) == ids


def test_a_text_of_broken_bytes_tells_nothing(tokenizer: Tokenizer) -> None:
    (last,) = tokenizer.encode_text("a").tolist()
    assert settle([None, last], "\ufffda", tokenizer.token_bytes) is None


def test_two_ways_to_spell_a_text_tell_nothing() -> None:
    character_of = {byte: character for character, byte in BYTES_OF_CHARACTERS.items()}
    f0, nine_f, nine_c, eight_2 = (character_of[byte] for byte in "🜂".encode())
    pieces = [f0, nine_f + nine_c, f0 + nine_f, nine_c, eight_2]
    backend = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, []))
    backend.decoder = decoders.ByteLevel()
    vocabulary = TokenBytes(backend)
    assert settle([None, None, 4], "🜂", vocabulary) is None
    assert settle([None, 1, 4], "🜂", vocabulary) == [0, 1, 4]


def test_without_a_vocabulary_only_whole_streams_are_settled() -> None:
    assert settle([5, 6], "ab", None) == [5, 6]
    assert settle([None, 6], "ab", None) is None
