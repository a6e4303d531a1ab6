"""Stop strings in text that comes in pieces, against a naive search on the whole text."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.inference.output_text import StopMatcher

letters = st.text(st.sampled_from("ab\n"), max_size=30)
stop_lists = st.lists(st.text(st.sampled_from("ab\n"), min_size=1, max_size=5), max_size=4)


def in_pieces(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece)[0] for piece in pieces)
    return shown + matcher.flush(), matcher.matched


def naively(stops: list[str], text: str) -> tuple[str, str | None]:
    """Look at every character as it comes; of the stop strings that end there the longest counts."""
    for end in range(len(text) + 1):
        for begin in range(end):
            if text[begin:end] in stops:
                return text[:begin], text[begin:end]
    return text, None


@settings(max_examples=1000)
@given(stops=stop_lists, text=letters, at=st.lists(st.integers(0, 30)))
def test_the_result_is_that_of_a_naive_search_however_the_text_is_cut(
    stops: list[str], text: str, at: list[int]
) -> None:
    bounds = sorted({0, len(text), *(min(position, len(text)) for position in at)})
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert in_pieces(stops, pieces) == naively(stops, text)


@settings(max_examples=1000)
@given(stops=stop_lists, text=letters)
def test_only_text_that_can_still_become_a_stop_string_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for character in text:
        emitted, matched = matcher.push(character)
        shown += emitted
        if matched:
            return
    held = matcher.flush()
    assert shown + held == text
    assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_across_three_pieces_is_found() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push("Hello.\nUs") == ("Hello.", None)
    assert matcher.push("er") == ("", None)
    assert matcher.push(": more") == ("", "\nUser:")


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", "x")
    assert matcher.push("more") == ("", "x")
    assert matcher.flush() == ""


def test_a_false_beginning_is_let_through() -> None:
    matcher = StopMatcher(["aab"])
    assert matcher.push("aaaa") == ("aa", None)
    assert matcher.push("c") == ("aac", None)


def test_without_stop_strings_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopMatcher([""])
