"""Passages in quotation marks: which count, where they are found, and when that is left open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.questions.passages import MAX_PASSAGES, FoundPassage, find_passages, passages

TIDE = "la mar\u00e9e monte"
WAVES = "\u6f6e\u306f\u4e00\u65e5\u306b\u4e8c\u5ea6\u6e80\u3061\u308b"
FIRST = "The tide rises twice a day.\nIt is highest at new moon, say the keepers of the harbour."
SECOND = "Boats leave with it.\fThe rent is 900\neuros, due at once."


def looked_up(summary: str, *texts: str, is_complete: bool = True, seconds: float = 60) -> list[FoundPassage]:
    with_pages = [(each, [0, *([each.index("\f") + 1] if "\f" in each else [])]) for each in texts]
    return find_passages(passages(summary), with_pages, is_complete=is_complete, seconds=seconds)


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ('It says "the tide rises" and "boats leave".', ["the tide rises", "boats leave"]),
        ("It says \u201cthe tide\nrises\u201d.", ["the tide\nrises"]),
        ("Es hei\u00dft \u201edie Flut steigt\u201c.", ["die Flut steigt"]),
        (f"Il dit \u00ab{TIDE}\u00bb, sie \u00bbdie Flut steigt\u00ab.", [TIDE, "die Flut steigt"]),
        (f"\u300c{WAVES}\u300d\u3068\u8a00\u3046", [WAVES]),
        ('A "so-called" boat of 5" and 7".', ["so-called"]),
        ("It's the keeper's 'own words here', isn't it?", []),
        ('An unclosed "mark on a line\nand another" one.', []),
        (f'"{"w" * 2001}"', []),
        ("", []),
    ],
)
def test_what_is_in_double_marks_and_has_some_letters_is_a_passage(summary: str, expected: list[str]) -> None:
    found = passages(summary)
    assert [each.text for each in found] == expected
    assert [summary[each.at : each.at + len(each.text)] for each in found] == expected


def test_only_so_many_are_looked_up() -> None:
    assert len(passages('"some words" ' * 3 * MAX_PASSAGES)) == MAX_PASSAGES


def test_each_is_found_in_the_first_text_that_has_it_with_its_page() -> None:
    found = looked_up(
        'It says "Highest at\u00a0new moon," \u201cThe rent is 900 euros\u201d and "a ship at sea".',
        FIRST,
        SECOND,
    )
    assert [(each.is_quoted, each.source, each.pages) for each in found] == [
        (True, 0, (1, 1)),
        (True, 1, (2, 2)),
        (False, None, None),
    ]
    start, end = found[1].place or (0, 0)
    assert SECOND[start:end] == "The rent is 900\neuros"


def test_what_is_in_no_text_is_open_unless_all_texts_were_looked_through() -> None:
    summary = '"The tide rises", "a ship at sea"'
    assert [each.is_quoted for each in looked_up(summary, FIRST, is_complete=False)] == [True, None]
    assert [each.is_quoted for each in looked_up(summary)] == [False, False]
    assert [each.is_quoted for each in looked_up(summary, FIRST, seconds=-1)] == [None, None]


@given(st.text(alphabet='ab "\u201c\u201d\u201e\u00ab\u00bb\n\u300c\u300d', max_size=200))
def test_passages_follow_each_other_and_are_in_the_summary(summary: str) -> None:
    end = 0
    for each in passages(summary):
        assert each.at > end - 1
        assert summary[each.at : (end := each.at + len(each.text))] == each.text
