"""Texts cut into chunks: every character once, no chunk too large, the same each time, at good places."""

import re
import time
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.summaries.chunking import cut, num_chunks


def words(text: str) -> int:
    return len(text.split())


def characters(text: str) -> int:
    return len(text)


def crumbs(text: str) -> int:
    """Pieces that a seam can make more of: as with real tokens, parts do not add up to the whole."""
    return len(text.encode()) // 3 + bool(text)


PIECES = st.sampled_from(
    [
        "word ",
        "Some longer sentence, with commas. ",
        "\n",
        "\n\n",
        "\r\n",
        "\r\n\r\n",
        "\n \t\n",
        "# Title\n",
        "## Heading\n\n",
        "Underlined\n==========\n",
        "Chapter 4\n",
        "\f",
        "無空白の文。",
        "Ende! ",
        "…",
        ". . . . ",
        "x" * 50,
        "\U0001f469\u200d\U0001f52c",
        "e\u0301",
        "\0",
        "   ",
    ]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=300).map("".join) | st.text(min_size=1, max_size=500)


@settings(max_examples=300)
@given(
    text=TEXTS,
    count=st.sampled_from([words, characters, crumbs]),
    chunk_tokens=st.integers(16, 400),
    overlap=st.integers(0, 100),
)
def test_every_character_stands_in_exactly_one_chunk_and_none_has_too_many_tokens(
    text: str, count: object, chunk_tokens: int, overlap: int
) -> None:
    overlap = min(overlap, (chunk_tokens - 1) // 2)
    chunks = cut(text, count, chunk_tokens=chunk_tokens, overlap_tokens=overlap)  # type: ignore[arg-type]  # one of ours
    assert "".join(text[chunk.start : chunk.end] for chunk in chunks) == text
    assert all(chunk.start < chunk.end for chunk in chunks)
    assert (chunks[0].start, chunks[-1].end) == (0, len(text))
    assert all(left.end == right.start for left, right in pairwise(chunks))
    for chunk in chunks:
        assert chunk.context <= chunk.start
        assert chunk.tokens == count(text[chunk.context : chunk.end]) <= chunk_tokens  # type: ignore[operator]  # one of ours
    assert chunks == cut(text, count, chunk_tokens=chunk_tokens, overlap_tokens=overlap)  # type: ignore[arg-type]  # one of ours


@settings(max_examples=100)
@given(sizes=st.lists(st.integers(1, 60), min_size=40, max_size=200), chunk_tokens=st.integers(160, 500))
def test_chunks_are_about_equally_long_and_as_many_as_planned(sizes: list[int], chunk_tokens: int) -> None:
    text = "\n\n".join(" ".join(["word"] * size) for size in sizes)
    chunks = cut(text, words, chunk_tokens=chunk_tokens)
    foretold = num_chunks(words(text), chunk_tokens=chunk_tokens)
    assert foretold <= len(chunks) + 1
    assert len(chunks) <= 1.3 * foretold + 1
    if len(chunks) > 2:
        assert min(chunk.tokens for chunk in chunks) > chunk_tokens / 4, "no remnants"


def test_a_text_that_fits_is_one_chunk() -> None:
    (chunk,) = cut("a b c", words, chunk_tokens=3)
    assert (chunk.start, chunk.end, chunk.context, chunk.tokens) == (0, 5, 0, 3)


def test_chunks_begin_with_headings_rather_than_with_paragraphs() -> None:
    section = "\n\n".join("word " * 10 for _ in range(6))
    text = "\n\n".join(f"## Section {number}\n\n{section}" for number in range(20))
    chunks = cut(text, words, chunk_tokens=150)
    assert len(chunks) > 5
    assert all(text[chunk.start :].startswith("## Section") for chunk in chunks)


@pytest.mark.parametrize(
    "heading", ["# Part", "Heading\n=======", "Chapter 7", "PART IV", "Heading\n-------\n", "Kapitel 3"]
)
def test_headings_of_many_kinds_are_known(heading: str) -> None:
    text = "\n\n".join(f"{heading}\n\n" + "word " * 40 + "\n\n" + "word " * 40 for _ in range(10))
    chunks = cut(text, words, chunk_tokens=110)
    assert all(text[chunk.start :].startswith(heading) for chunk in chunks)


def test_a_paragraph_without_end_is_cut_between_sentences() -> None:
    text = " ".join(f"This is sentence number {number} of a long one." for number in range(200))
    chunks = cut(text, words, chunk_tokens=100)
    assert all(text[chunk.start :].startswith("This is") for chunk in chunks)


def test_chinese_is_cut_between_sentences_although_it_has_no_spaces() -> None:
    text = "這是一個沒有空格的句子。" * 200
    chunks = cut(text, characters, chunk_tokens=100)
    assert all(text[chunk.start : chunk.start + 2] == "這是" for chunk in chunks)


def test_overlapping_chunks_repeat_the_end_of_the_chunk_before() -> None:
    text = "\n\n".join(" ".join(f"w{line}" for _ in range(10)) for line in range(100))
    chunks = cut(text, words, chunk_tokens=120, overlap_tokens=30)
    for before, chunk in pairwise(chunks):
        assert before.start < chunk.context < chunk.start
        assert 0 < words(text[chunk.context : chunk.start]) <= 30


@pytest.mark.parametrize("char", [".", "\n", " ", "=", "#", "a", "(", "\r", "。", "…", "-\n"])
def test_a_megabyte_of_one_character_is_cut_in_seconds(char: str) -> None:
    text = char * (1_000_000 // len(char))
    started = time.thread_time()
    chunks = cut(text, crumbs, chunk_tokens=10_000)
    assert "".join(text[chunk.start : chunk.end] for chunk in chunks) == text
    assert time.thread_time() - started < 20


def test_an_empty_text_and_an_overlap_of_half_a_chunk_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        cut("", words, chunk_tokens=100)
    with pytest.raises(ValueError, match="half"):
        cut("a b c", words, chunk_tokens=100, overlap_tokens=50)


class Counted:
    """Counts words, and how many characters it was asked to count."""

    def __init__(self) -> None:
        self.num_chars = 0

    def count(self, text: str) -> int:
        self.num_chars += len(text)
        return len(text.split())

    def starts(self, text: str) -> npt.NDArray[np.int32]:
        self.num_chars += len(text)
        return np.array([match.start() for match in re.finditer(r"\S+", text)], dtype=np.int32)


@pytest.mark.parametrize("separator", [" ", "\n", "\n\n", ". "])
def test_a_text_is_tokenized_about_twice_whatever_its_boundaries(separator: str) -> None:
    counted = Counted()
    text = separator.join("w" * (1 + number % 9) for number in range(20_000))
    chunks = cut(text, counted.count, chunk_tokens=500, starts=counted.starts)
    assert len(chunks) > 40
    assert counted.num_chars <= 2.1 * len(text)


@settings(max_examples=100)
@given(text=TEXTS, chunk_tokens=st.integers(16, 400), overlap=st.integers(0, 100), factor=st.integers(1, 3))
def test_chunks_are_exact_though_starts_are_not(
    text: str, chunk_tokens: int, overlap: int, factor: int
) -> None:
    def starts(whole: str) -> npt.NDArray[np.int32]:
        return np.arange(0, len(whole), factor, dtype=np.int32)

    overlap = min(overlap, (chunk_tokens - 1) // 2)
    chunks = cut(text, characters, chunk_tokens=chunk_tokens, overlap_tokens=overlap, starts=starts)
    assert "".join(text[chunk.start : chunk.end] for chunk in chunks) == text
    assert all(
        chunk.tokens == len(text[chunk.context : chunk.end]) <= chunk_tokens and chunk.start < chunk.end
        for chunk in chunks
    )
