"""A stretch of a text is cut where pages begin, and loses no character."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.console.documents.texts import cut_pages
from jobs.prompts.tokenizer import pack_text


@pytest.mark.parametrize(
    ("pages", "start", "end", "expected"),
    [
        ([], 0, 99, [(None, "abcdefghij", True)]),
        ([], 4, 6, [(None, "ef", False)]),
        ([0, 4, 8], 0, 10, [(1, "abcd", True), (2, "efgh", True), (3, "ij", True)]),
        ([0, 4, 8], 2, 6, [(1, "cd", False), (2, "ef", True)]),
        ([0, 4, 4, 8], 4, 9, [(2, "", True), (3, "efgh", True), (4, "i", True)]),
        ([0, 0, 8], 0, 4, [(1, "", True), (2, "abcd", True)]),
    ],
)
def test_a_stretch_begins_each_page_with_its_number(
    pages: list[int], start: int, end: int, expected: list[tuple[int | None, str, bool]]
) -> None:
    found = cut_pages(pack_text("abcdefghij"), pages, start=start, end=end)
    assert [(each.page, each.text, each.begins) for each in found] == expected


@given(
    text=st.text(max_size=60),
    offsets=st.lists(st.integers(0, 60), max_size=8),
    start=st.integers(0, 70),
    length=st.integers(1, 70),
)
def test_the_pieces_are_the_stretch_in_order(text: str, offsets: list[int], start: int, length: int) -> None:
    pages = sorted(min(each, len(text)) for each in [0, *offsets]) if offsets else []
    found = cut_pages(pack_text(text), pages, start=start, end=start + length)
    assert "".join(each.text for each in found) == text[start : start + length]
    numbers = [each.page for each in found if each.page is not None]
    assert all(after == before + 1 for before, after in pairwise(numbers))
