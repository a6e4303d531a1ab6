"""Prefixes of prompts: what two of a tenant's have in common, and nothing about two tenants'."""

from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.prompts.prefixes import (
    SHORTEST,
    Digests,
    StoredPrefixes,
    digests,
    family,
    family_tokens,
    hashed_tokens,
    keyed,
    longer_family,
    num_kept_bytes,
    shared_tokens,
    shorter_family,
)

ONE, OTHER = UUID(int=1), UUID(int=2)
LENGTHS = [(4 + step) * 64 << octave for octave in range(10) for step in range(4)]


def prompt(document: int, *tail: int) -> "np.typing.NDArray[np.int32]":
    return np.array([*np.arange(document) % 997, *tail], dtype=np.int32)


def stored(ids: "np.typing.NDArray[np.int32]", tenant_id: UUID = ONE) -> StoredPrefixes:
    return StoredPrefixes(keyed(digests(ids), tenant_id), len(ids))


def by_the_release_before(prefixes: StoredPrefixes) -> list[bytes]:
    """All hashes as that release reads them: 8 bytes each."""
    return [prefixes.kept[at : at + 8] for at in range(0, len(prefixes.kept), 8)]


@given(st.integers(0, 5000), st.lists(st.integers(10_000, 20_000), max_size=400), st.integers(0, 400))
def test_prompts_share_what_they_begin_with_down_to_the_next_length(
    document: int, tail: list[int], other_tail: int
) -> None:
    one, other = prompt(document, *tail), prompt(document, *([30_000] * other_tail))
    shared = shared_tokens(stored(one), stored(other))
    expected = max((each for each in LENGTHS if each <= document), default=0)
    assert expected <= shared <= document
    assert expected >= document * 4 / 5 or document < SHORTEST
    families = sorted(family_tokens(len(each)) for each in (one, other))
    if document < families[1] or not families[0] or families[1] > 2 * families[0]:
        assert shared == expected
    else:
        assert document - shared < 64
        assert shared == hashed_tokens(document, of=len(one)) == hashed_tokens(document, of=len(other))


@pytest.mark.parametrize("document", [2500, 16_390, 32_767, 32_769, 60_000, 65_530, 66_000, 96_000, 131_072])
@pytest.mark.parametrize("tail", [60, 1500])
def test_a_document_is_known_as_shared_but_for_a_fraction_of_a_percent(document: int, tail: int) -> None:
    one, other = stored(prompt(document, *([1] * 60))), stored(prompt(document, *([2] * tail)))
    assert 0 <= document - shared_tokens(one, other) < max(64, document / 250)


@pytest.mark.parametrize("octave", [4096, 32_768, 65_536])
def test_prompts_about_a_document_know_each_other_where_their_lengths_straddle_a_family_s(
    octave: int,
) -> None:
    document = int(octave / 0.9) - 40
    shorter, longer = stored(prompt(document, *([1] * 9))), stored(prompt(document, *([2] * 150)))
    unlike = stored(prompt(octave - 1, *([3] * 9000))[: document + 100])
    assert family_tokens(longer.num_tokens) == octave == 2 * family_tokens(shorter.num_tokens)
    mine, theirs = (family(each.prefixes, each.num_tokens) for each in (shorter, longer))
    assert longer_family(shorter) == theirs != longer_family(unlike)
    assert shorter_family(longer) == mine == shorter_family(unlike)
    assert longer_family(longer) is shorter_family(shorter) is None
    assert 0 <= document - shared_tokens(shorter, longer) < max(64, document / 250)
    assert shared_tokens(longer, unlike) < octave


def test_what_prompts_share_in_their_middle_is_known_as_well() -> None:
    one, other = prompt(60_000), prompt(40_010, *range(20_000))
    assert shared_tokens(stored(one), stored(other)) == 39_936 == 312 * 128


def test_one_different_token_at_the_start_leaves_nothing_in_common() -> None:
    assert shared_tokens(stored(prompt(5000)), stored(prompt(5000)[1:])) == 0


def test_equal_prompts_of_two_tenants_have_no_hash_in_common() -> None:
    mine, theirs = stored(prompt(96_000)), stored(prompt(96_000), OTHER)
    assert len(mine.kept) == len(theirs.kept) == (34 + 1) * 8 + (96_000 - 65_536) // 256 * 4
    for size, begin in ((8, 0), (4, 35 * 8)):
        hashes = [
            {each.kept[at : at + size] for at in range(begin, len(each.kept), size)}
            for each in (mine, theirs)
        ]
        assert not hashes[0] & hashes[1]


@given(st.integers(0, 150_000))
def test_a_row_grows_by_little_over_a_kilobyte(length: int) -> None:
    found = digests(np.arange(length, dtype=np.int32))
    assert len(keyed(found, ONE)) == num_kept_bytes(found) <= 8 * 38 + 8 + 4 * 285


@given(st.integers(2048, 5000), st.integers(1, 300), st.integers(1, 300))
def test_the_release_before_reads_no_more_into_stored_prefixes_than_they_say(
    document: int, tail: int, other_tail: int
) -> None:
    one, other = stored(prompt(document, *([1] * tail))), stored(prompt(document, *([2] * other_tail)))
    pairs = zip(by_the_release_before(one), by_the_release_before(other), strict=False)
    equal = [mine == theirs for mine, theirs in pairs]
    num_equal = [*equal, False].index(False)
    assert LENGTHS[num_equal - 1] <= document


def test_prefixes_that_the_release_before_stored_say_what_they_said() -> None:
    found = digests(prompt(60_000, 1))
    before = StoredPrefixes(keyed(Digests(found.prefixes), ONE), 60_001)
    assert shared_tokens(before, stored(prompt(60_000, 2))) == 57_344


def test_a_short_prompt_has_no_prefixes() -> None:
    assert stored(prompt(SHORTEST - 1)).kept == b""
    assert shared_tokens(StoredPrefixes(b"", 9), stored(prompt(SHORTEST))) == 0
