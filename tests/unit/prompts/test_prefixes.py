"""Prefixes of prompts: what two of a tenant's have in common, and nothing about two tenants'."""

from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jobs.prompts.prefixes import SHORTEST, digests, keyed, shared_tokens

ONE, OTHER = UUID(int=1), UUID(int=2)
LENGTHS = [(4 + step) * 64 << octave for octave in range(10) for step in range(4)]


def prompt(document: int, *tail: int) -> "np.typing.NDArray[np.int32]":
    return np.array([*np.arange(document) % 997, *tail], dtype=np.int32)


def stored(ids: "np.typing.NDArray[np.int32]", tenant_id: UUID = ONE) -> bytes:
    return keyed(digests(ids), tenant_id)


@given(st.integers(0, 5000), st.lists(st.integers(10_000, 20_000), max_size=400), st.integers(0, 400))
def test_prompts_share_what_they_begin_with_down_to_the_next_length(
    document: int, tail: list[int], other_tail: int
) -> None:
    one, other = prompt(document, *tail), prompt(document, *([30_000] * other_tail))
    expected = max((each for each in LENGTHS if each <= document), default=0)
    assert shared_tokens(stored(one), stored(other)) == expected
    assert expected >= document * 4 / 5 or document < SHORTEST


def test_one_different_token_at_the_start_leaves_nothing_in_common() -> None:
    assert shared_tokens(stored(prompt(5000)), stored(prompt(5000)[1:])) == 0


def test_equal_prompts_of_two_tenants_have_no_hash_in_common() -> None:
    mine, theirs = stored(prompt(96_000)), stored(prompt(96_000), OTHER)
    assert len(mine) == len(theirs) == 34 * 8
    assert not {mine[at : at + 8] for at in range(0, len(mine), 8)} & {
        theirs[at : at + 8] for at in range(0, len(theirs), 8)
    }


def test_a_short_prompt_has_no_prefixes() -> None:
    assert stored(prompt(SHORTEST - 1)) == b""
    assert shared_tokens(b"", stored(prompt(SHORTEST))) == 0
