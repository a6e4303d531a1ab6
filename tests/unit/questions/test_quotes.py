"""Quotes are found in a text whatever its layout, and words that are not there are not found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.questions.quotes import QuotableText, pages_of

TEXT = (
    "The notice\n  period is three (3) months to the end of a quar-\nter. "
    "Ligatures: the \ufb01rst o\ufb03ce.\n\f"
    "Er sagte: \u201eDie Kündigung gilt\u201c \u2014 nicht vorher. 契約は三月で終わる。 part apart"
)


def found(quote: str, text: str = TEXT) -> str | None:
    place = QuotableText(text).find(quote)
    return None if place is None else text[slice(*place)]


@pytest.mark.parametrize(
    ("quote", "words"),
    [
        ("notice period is three (3) months", "notice\n  period is three (3) months"),
        ("the end of a quarter", "the end of a quar-\nter"),
        ("the end of a quar-ter.", "the end of a quar-\nter."),
        ("the first office", "the \ufb01rst o\ufb03ce"),
        ('"Die Kündigung gilt" - nicht vorher', "Die Kündigung gilt\u201c \u2014 nicht vorher"),
        ("Die Ku\u0308ndigung gilt", "Die Kündigung gilt"),
        ("三月で終わる", "三月で終わる"),
        ("The notice period ... to the end", "The notice\n  period is three (3) months to the end"),
        ("The notice period [...] to the end", "The notice\n  period is three (3) months to the end"),
        ("\u201cnotice period\u2026\u201d", "notice\n  period"),
    ],
)
def test_words_are_found_whatever_lies_between_them(quote: str, words: str) -> None:
    assert found(quote) == words


@pytest.mark.parametrize(
    "quote",
    [
        "notice period is two months",
        "otice period",
        "notice perio",
        "to the end ... The notice",
        "",
        "...",
        " - ",
    ],
)
def test_other_words_cut_words_and_nothing_are_not_found(quote: str) -> None:
    assert found(quote) is None


def test_a_word_inside_of_another_is_passed_over_for_the_word_itself() -> None:
    assert QuotableText("apart part").find("part") == (6, 10)
    assert QuotableText("e" * 300_000).find("e") is None, "and not for ever"


def test_a_quote_of_many_scattered_letters_is_not_looked_for_everywhere() -> None:
    """A worker looks for quotes while it holds a row, so what one costs is bounded, however it is written."""
    text = QuotableText(("e" * 1000 + " e ") * 100)
    assert text.find("... ".join("e" * 10)) is not None
    assert text.find("... ".join("e" * 100)) is None


def test_a_quote_with_a_long_run_of_white_space_is_found_at_once() -> None:
    assert found("notice" + " " * 1_000_000 + "period [...] to the end") is not None


def test_no_text_takes_longer_to_fold_than_its_length_explains() -> None:
    marks = "a" + "\u0316\u0300" * 200_000
    for text in (
        marks,
        "\u0300" * 400_000,
        "\ufdfa" * 200_000,
        "\ufb03" * 200_000,
        "\u1ea5a\u0302\u0301" * 100_000,
    ):
        assert found("the end", f"Rain {text} at the end.") == "the end"
        assert found("Rain", f"Rain {text} at the end.") == "Rain"


def test_letters_with_marks_and_ligatures_keep_their_places() -> None:
    text = "x \ufb03 \n\u0065\u0301te\u0301 \u1e9b\u0323 \ufdfa end"
    for quote, words in (
        ("ffi", "\ufb03"),
        ("x ffi", "x \ufb03"),
        ("\u00e9t\u00e9", "e\u0301te\u0301"),
        ("ffi \u00e9t\u00e9", "\ufb03 \ne\u0301te\u0301"),
        ("\ufdfa end", "\ufdfa end"),
    ):
        assert found(quote, text) == words
    assert found("\u00e9", "e\u0301t") is None, "a cut word"


def test_a_quote_does_not_stitch_far_words_together() -> None:
    text = "The fee is waived. " + "Nothing here. " * 300 + "The fee is due on Monday."
    assert found("The fee is ... waived", text) == "The fee is waived"
    assert found("The fee ... Monday", text) == "The fee is due on Monday", "the nearer words"
    assert found("waived ... Monday", text) is None


def test_a_quote_of_letters_is_given_up() -> None:
    text = ("e" * 15_000 + " e ") * 20
    assert found("e", text) == "e"
    assert found(" ... ".join("e" * 10), text) is None
    assert found(" ... ".join("ab" * 2000), "a " * 200_000) is None


@given(st.text(max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_what_is_found_has_the_characters_of_the_quote(text: str, start: int, end: int) -> None:
    place = QuotableText(text).find(text[start:end])
    if place is not None:
        assert 0 <= place[0] < place[1] <= len(text)


WORDS = st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=1, max_size=30)


@given(WORDS, st.data())
def test_whole_words_of_a_text_are_found_however_it_is_broken(words: list[str], data: st.DataObject) -> None:
    gaps = data.draw(
        st.lists(st.sampled_from([" ", "\n", " \n\n ", "\t", "\f"]), min_size=len(words), max_size=len(words))
    )
    text = "".join(word + gap for word, gap in zip(words, gaps, strict=True))
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    place = QuotableText(text).find(" ".join(words[first : last + 1]))
    assert place is not None
    # Another place may have the same characters: "a a" comes before "aa".
    assert "".join(text[slice(*place)].split()) == "".join(words[first : last + 1])


def test_pages_are_those_of_the_first_and_the_last_character() -> None:
    starts = [0, 10, 20]
    assert pages_of(starts, 0, 10) == (1, 1)
    assert pages_of(starts, 9, 11) == (1, 2)
    assert pages_of(starts, 25, 30) == (3, 3)
    assert pages_of([], 0, 10) is None
