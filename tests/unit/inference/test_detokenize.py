"""Incremental detokenization against decoding everything at once."""

import itertools

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import ensure_default_tokenizer
from worker.engine.storable import sanitize
from worker.inference.detokenize import Detokenizer

TEXTS = [
    "plain words",
    "😀👨\u200d👩\u200d👧",
    "汉字かな交じり文",
    "e\u0301a\u0308",
    "Zażółć",
    "\x00\t\r\n",
    "�",
    "  ",
    "नमस्ते",
]

answers = st.one_of(
    # Ids 0 to 255 are single bytes in Llama 3's vocabulary: mostly no valid UTF-8.
    st.lists(st.integers(0, 255), max_size=24),
    st.lists(st.integers(0, 128_255), max_size=24),
)


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(ensure_default_tokenizer() / "tokenizer.json"))


def in_pieces(tokenizer: Tokenizer, pieces: list[list[int]]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(piece) for piece in pieces), detokenizer.flush()]


def cut(ids: list[int], at: list[int]) -> list[list[int]]:
    bounds = sorted({0, len(ids), *(position % (len(ids) + 1) for position in at)})
    return [ids[start:end] for start, end in itertools.pairwise(bounds)]


@settings(max_examples=500)
@given(ids=answers, at=st.lists(st.integers(0, 23)))
def test_pieces_add_up_to_the_whole_however_the_ids_are_cut(
    tokenizer: Tokenizer, ids: list[int], at: list[int]
) -> None:
    assert "".join(in_pieces(tokenizer, cut(ids, at))) == tokenizer.decode(ids)


@settings(max_examples=500)
@given(ids=answers)
def test_the_whole_is_what_the_tokenizers_library_decodes(
    tokenizer: Tokenizer, backend: tokenizers.Tokenizer, ids: list[int]
) -> None:
    assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=True)


@given(
    text=st.lists(st.one_of(st.sampled_from(TEXTS), st.text(st.characters(exclude_categories=["Cs"])))).map(
        "".join
    )
)
def test_no_push_ever_shows_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_text(text).tolist()
    shown = ""
    for piece in in_pieces(tokenizer, [[token_id] for token_id in ids]):
        shown += piece
        assert text.startswith(shown)
    assert shown == text


def test_an_unfinished_character_is_held_back_until_the_flush(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_text("\U0001f9ff").tolist()
    detokenizer = Detokenizer(tokenizer)
    assert len(ids) > 1
    assert detokenizer.push(ids[:-1]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_the_end_token_and_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode_text("end").tolist(), *tokenizer.eos_ids, tokenizer.num_tokens, 2**31 - 1, -1]
    assert in_pieces(tokenizer, [ids]) == ["end", ""]


def test_invalid_bytes_cost_no_more_than_text(tokenizer: Tokenizer) -> None:
    (start_of_four,) = [token_id for token_id in range(256) if tokenizer.token_bytes[token_id] == b"\xf0"]
    detokenizer = Detokenizer(tokenizer)
    shown = "".join(detokenizer.push([start_of_four]) for _ in range(100_000)) + detokenizer.flush()
    assert shown == "\ufffd" * 100_000


@given(text=st.text(st.characters()))
def test_sanitized_text_can_be_stored_and_says_whether_it_changed(text: str) -> None:
    storable, changed = sanitize(text)
    storable.encode()
    assert "\x00" not in storable
    assert len(storable) == len(text)
    assert changed == (storable != text)


def test_sanitize_replaces_nul_and_lone_surrogates() -> None:
    assert sanitize("a\x00b\ud800c") == ("a\ufffdb\ufffdc", True)
    assert sanitize("plain \ufffd") == ("plain \ufffd", False)
