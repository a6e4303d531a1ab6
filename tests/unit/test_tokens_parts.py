"""Long texts encoded in parts, against encoding them whole."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from jobs.plain_text import PlainEncoder
from jobs.tokenizer_files import ensure_default_tokenizer

# Everything that the patterns of words tell apart, in short runs.
RUNS = [
    "a",
    "the",
    "Zürich",
    "'s",
    "'LL",
    "1",
    "2345",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u00a0",
    "!",
    "...",
    "汉字",
    "😀",
    "e\u0301",
    "\x00",
]
PART_CHARS = 6


@pytest.fixture(scope="module")
def whole() -> PlainEncoder:
    return encoder(part_chars=10**9)


@pytest.fixture(scope="module")
def in_parts() -> PlainEncoder:
    return encoder(part_chars=PART_CHARS)


def encoder(part_chars: int) -> PlainEncoder:
    serialized = (ensure_default_tokenizer() / "tokenizer.json").read_bytes()
    return PlainEncoder(tokenizers.Tokenizer.from_buffer(serialized), serialized, part_chars=part_chars)


texts = st.lists(
    st.one_of(st.sampled_from(RUNS), st.text(st.characters(exclude_categories=["Cs"]), max_size=3))
)


@settings(deadline=None, max_examples=1500)
@given(runs=texts)
def test_a_text_in_parts_has_the_tokens_of_the_whole(
    whole: PlainEncoder, in_parts: PlainEncoder, runs: list[str]
) -> None:
    text = "".join(runs)
    assert in_parts.encode(text).tolist() == whole.encode(text).tolist()


def test_a_long_text_is_indeed_cut_and_nothing_of_it_is_lost(in_parts: PlainEncoder) -> None:
    text = "Some words, and  more\n\nof them\u3002 " * 20
    parts = list(in_parts._parts(text))
    assert len(parts) > len(text) // (3 * PART_CHARS)
    assert "".join(parts) == text


@pytest.mark.parametrize("character", ["a", " ", "\n", "!", "😀"])
def test_one_endless_word_is_not_cut(whole: PlainEncoder, in_parts: PlainEncoder, character: str) -> None:
    text = "x " + character * 1000 + " y"
    assert in_parts.encode(text).tolist() == whole.encode(text).tolist()


def test_a_tokenizer_with_tokens_across_words_is_never_cut() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, " ": 1, "a ": 2}, [("a", " ")]))
    for pre_tokenizer in (
        None,
        pre_tokenizers.Split(" ", "merged_with_previous"),
        pre_tokenizers.Metaspace(),
    ):
        if pre_tokenizer is not None:
            backend.pre_tokenizer = pre_tokenizer
        tested = PlainEncoder(tokenizers.Tokenizer.from_str(backend.to_str()), b"", part_chars=2)
        assert list(tested._parts("a a a a")) == ["a a a a"]
