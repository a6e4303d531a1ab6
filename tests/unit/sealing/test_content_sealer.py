"""Content at rest: what was sealed opens as itself, and nothing else opens."""

from hashlib import blake2b
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from jobs.sealing.content import (
    ADDED_BYTES,
    ESCAPE,
    PLAIN,
    SEALED,
    ContentSealer,
    ContentUnreadableError,
    key_name,
)
from jobs.sealing.keys import VaultKeyError, name_of

PLACE = "results.output"
OLD, NEW = bytes(32), bytes(range(32))
SEALS = ContentSealer([NEW], seals=True)
# Sealed when there was no release yet: what is stored must open for ever.
STORED = "\x01sealed:e9df8a32:npCYrdUYDd7CZ43QvyrXyWZL+Sw8NJwJHK3IYJ7+Ynd6UiJJamkH5kP47cQ"
STARTS = st.sampled_from(["", SEALED, ESCAPE, ESCAPE + SEALED, SEALED[:-1], "\x01"])
TEXTS = st.builds(str.__add__, STARTS, st.text())
BYTES = st.builds(lambda start, rest: start.encode() + rest, STARTS, st.binary())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
JSON = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=8)
either = pytest.mark.parametrize("sealer", [PLAIN, SEALS], ids=["plain", "sealed"])


@either
@given(content=TEXTS)
def test_every_text_comes_back_as_it_was(sealer: ContentSealer, content: str) -> None:
    assert SEALS.open_text(sealer.seal_text(content, PLACE), PLACE) == content


@either
@given(content=BYTES)
def test_all_bytes_come_back_as_they_were(sealer: ContentSealer, content: bytes) -> None:
    assert SEALS.open_bytes(sealer.seal_bytes(content, PLACE), PLACE) == content


@either
@given(content=JSON)
def test_all_json_comes_back_as_it_was(sealer: ContentSealer, content: Any) -> None:  # noqa: ANN401  # JSON
    assert SEALS.open_json(sealer.seal_json(content, PLACE), PLACE) == content


@given(content=st.text(min_size=8))
def test_what_is_stored_of_sealed_content_does_not_show_it(content: str) -> None:
    encoded = content.encode(errors="surrogatepass")
    assert content not in SEALS.seal_text(content, PLACE)
    assert content not in str(SEALS.seal_json([content], PLACE))
    assert encoded not in SEALS.seal_bytes(encoded, PLACE)


def test_what_an_earlier_build_stored_still_opens() -> None:
    assert SEALS.open_text(STORED, PLACE) == "appendicitis"


def test_every_value_has_a_key_of_its_own() -> None:
    """So that the number of values under one key has no bound that anybody reaches."""
    salts = {SEALS.seal_bytes(b"content", PLACE)[12:28] for _ in range(100)}
    assert len(salts) == 100
    sealed = SEALS.seal_bytes(b"content", PLACE)
    purpose = f"longbatch content {PLACE}".encode()
    made = blake2b(sealed[12:28] + purpose, key=NEW, digest_size=44).digest()
    opened = AESGCM(made[:32]).decrypt(made[32:], sealed[28:], purpose)
    assert opened == b"content"


@given(content=st.binary())
def test_sealing_adds_a_fixed_number_of_bytes(content: bytes) -> None:
    assert len(SEALS.seal_bytes(content, PLACE)) == len(content) + ADDED_BYTES


@given(content=TEXTS)
def test_nobody_can_write_what_is_taken_for_sealed(content: str) -> None:
    stored = PLAIN.seal_text(content, PLACE)
    assert key_name(stored) is None
    assert key_name(PLAIN.seal_bytes(content.encode(), PLACE)) is None
    assert key_name(str(PLAIN.seal_json(content, PLACE))) is None
    if not content.startswith("\x01"):
        assert stored == content


def test_sealed_content_given_as_content_is_content() -> None:
    stolen = SEALS.seal_text("of another tenant", PLACE)
    for sealer in (PLAIN, SEALS):
        assert SEALS.open_text(sealer.seal_text(stolen, PLACE), PLACE) == stolen


@given(content=st.binary(max_size=40), place=st.integers(min_value=8), bit=st.integers(0, 7))
def test_a_changed_byte_is_noticed(content: bytes, place: int, bit: int) -> None:
    sealed = bytearray(SEALS.seal_bytes(content, PLACE))
    sealed[8 + place % (len(sealed) - 8)] ^= 1 << bit
    with pytest.raises(ContentUnreadableError):
        SEALS.open_bytes(bytes(sealed), PLACE)


@pytest.mark.parametrize("cut", [8, 9, 20, 30])
def test_what_was_cut_off_is_noticed(cut: int) -> None:
    with pytest.raises(ContentUnreadableError):
        SEALS.open_bytes(SEALS.seal_bytes(b"content", PLACE)[:cut], PLACE)
    with pytest.raises(ContentUnreadableError):
        SEALS.open_text(SEALS.seal_text("content", PLACE)[:cut], PLACE)


def test_content_of_one_column_does_not_open_as_that_of_another() -> None:
    with pytest.raises(ContentUnreadableError):
        SEALS.open_text(SEALS.seal_text("content", "results.output"), "results.reasoning")


def test_any_of_several_keys_opens_and_the_newest_seals() -> None:
    before, both = ContentSealer([OLD], seals=True), ContentSealer([NEW, OLD], seals=True)
    stored = before.seal_text("content", PLACE)
    assert both.open_text(stored, PLACE) == "content"
    assert both.is_outdated(stored)
    again = both.seal_text("content", PLACE)
    assert key_name(again) == name_of(NEW).hex()
    assert not both.is_outdated(again)


def test_a_missing_key_is_named_and_the_content_is_not() -> None:
    stored = SEALS.seal_text("the diagnosis", PLACE)
    with pytest.raises(ContentUnreadableError) as raised:
        PLAIN.open_text(stored, PLACE)
    assert raised.value.code == "content_unreadable"
    assert name_of(NEW).hex() in raised.value.message
    assert raised.value.details == {"key": name_of(NEW).hex()}


def test_a_sealer_that_no_longer_seals_still_opens() -> None:
    off = ContentSealer([NEW])
    assert off.open_json(SEALS.seal_json({"a": 1}, PLACE), PLACE) == {"a": 1}
    assert off.seal_text("content", PLACE) == "content"


def test_sealing_needs_a_key() -> None:
    with pytest.raises(ValueError, match="without a key"):
        ContentSealer(seals=True)


def test_an_invalid_key_is_an_error_that_names_the_setting() -> None:
    assert "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY" in VaultKeyError().message
