"""Bars find room, keep it, and never lie on each other."""

from math import inf
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from api.console.engines.shelves import Item, Shelf

ROOM = 20


def item(number: int, start: float, end: float, size: int) -> Item:
    return Item(UUID(int=number), start, end, size)


def cells(shelf: Shelf, one: Item) -> set[int]:
    """The units of room that an item has; each piece is whole, and none touches the next."""
    found = [set(range(start, start + size)) for start, size in shelf.pieces[one.key]]
    together = set[int]().union(*found)
    assert len(together) == sum(map(len, found)) == one.size
    return together


def check(shelf: Shelf, items: list[Item]) -> None:
    for place, one in enumerate(items):
        for other in items[place + 1 :]:
            if one.start < other.end and other.start < one.end:
                assert not cells(shelf, one) & cells(shelf, other)


spans = st.tuples(st.integers(0, 30), st.integers(1, 15), st.integers(1, 8))


@given(given_spans=st.lists(spans, max_size=25), num_gone=st.integers(0, 25))
def test_items_never_overlap_and_none_moves_when_others_go(
    given_spans: list[tuple[int, int, int]], num_gone: int
) -> None:
    items = [
        item(number, start, start + length, size) for number, (start, length, size) in enumerate(given_spans)
    ]
    shelf = Shelf(ROOM)
    shelf.place(items)
    check(shelf, items)
    left = items[num_gone:]
    before = {one.key: shelf.pieces[one.key] for one in left}
    new = item(99, 10, inf, 5)
    shelf.place([*left, new])
    assert {one.key: shelf.pieces[one.key] for one in left} == before
    check(shelf, [*left, new])


@given(given_spans=st.lists(spans, max_size=25))
def test_what_fits_together_lies_within_the_room(given_spans: list[tuple[int, int, int]]) -> None:
    items: list[Item] = []
    for number, (start, length, size) in enumerate(given_spans):
        new = item(number, start, start + length, size)
        trial = [*items, new]
        moments = {each.start for each in trial}
        if all(sum(each.size for each in trial if each.start <= at < each.end) <= ROOM for at in moments):
            items = trial
    shelf = Shelf(ROOM)
    shelf.place(items)
    assert all(max(cells(shelf, one)) < ROOM for one in items)


def test_an_item_lies_in_several_gaps_if_none_is_large_enough() -> None:
    shelf = Shelf(10)
    low, middle, high = item(1, 0, 5, 3), item(2, 0, 50, 4), item(3, 0, 5, 3)
    shelf.place([low, middle, high])
    late = item(4, 10, 50, 6)
    shelf.place([low, middle, high, late])
    assert shelf.pieces[late.key] == [(0, 3), (7, 3)]


def test_a_reservation_that_grows_keeps_what_it_has() -> None:
    shelf = Shelf(10)
    shelf.place([item(1, 0, inf, 3), item(2, 0, inf, 3)])
    (first,) = shelf.pieces[UUID(int=1)]
    shelf.place([item(1, 0, inf, 5), item(2, 0, inf, 3)])
    assert first in shelf.pieces[UUID(int=1)]
    check(shelf, [item(1, 0, inf, 5), item(2, 0, inf, 3)])


def test_what_needs_more_than_there_is_lies_above() -> None:
    shelf = Shelf(10)
    shelf.place([item(1, 0, inf, 8), item(2, 1, inf, 8)])
    assert shelf.pieces[UUID(int=2)] == [(8, 8)]
