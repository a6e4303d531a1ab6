"""What the local engine says: extracts that read well, in linear time, and continuations that fit."""

import time
from collections.abc import Sequence
from itertools import pairwise
from pydoc_data.topics import topics

import numpy as np
import pytest

from local_engine import engine_module

speech = engine_module("speech")
summary = engine_module("summary")
oracle = engine_module("oracle")
REFERENCE = "\n\n".join(topics.values())
HEADER = [128006, 78191, 128007, 271]


class Counting:
    """A speaker that counts up from the length of the question."""

    markup = speech.Markup()

    def script(self, asked: np.ndarray, ask: object) -> object:  # noqa: ARG002 every speaker is called so
        return speech.Script(ids=tuple(range(len(asked), len(asked) + 50)), length=50)


def said(prompt: Sequence[int | None], count: int, **fields: object) -> list[int | None]:
    ask = speech.Ask(ids=np.array(prompt, dtype=np.int32), max_tokens=100, **fields)
    prepared = speech.prepare(Counting(), ask)
    return [prepared.token(index) for index in range(count)]


def test_a_continuation_goes_on_where_the_prompt_leaves_off() -> None:
    prompt = [128000, *HEADER[:1], 882, 128007, 271, 5, 6, 7, 128009, *HEADER]
    whole = said(prompt, 50)
    assert None not in whole
    assert said(prompt, 51)[-1] is None
    for cut in (1, 20, 49):
        assert said(prompt + whole[:cut], 50 - cut) == whole[cut:]
    assert said(prompt + whole, 1) == [None]


def test_a_prompt_without_turns_is_a_question_as_a_whole() -> None:
    assert said([1, 2, 3], 2) == [3, 4]


def test_without_an_end_token_the_answer_starts_again() -> None:
    assert said([1, 2, 3], 52, ends=False)[-2:] == [3, 4]


def test_a_stop_word_is_found_in_what_is_still_to_be_said() -> None:
    ask = speech.Ask(ids=np.array([1, 2, 3], dtype=np.int32), max_tokens=100, stop_words=((9, 9), (5, 6)))
    assert speech.prepare(Counting(), ask).stop_at == 4


def test_an_extract_is_made_of_the_documents_own_sentences_in_their_order() -> None:
    document = REFERENCE[:20_000]
    extract = summary.summarize(document)
    prose = " ".join(document.split())
    sentences = [piece for piece in summary._SENTENCE_END.split(extract) if piece]
    assert len(sentences) >= 3
    places = [prose.index(sentence.rstrip(".")) for sentence in sentences]
    assert all(one < other for one, other in pairwise(places))


def test_an_extract_grows_slowly_with_the_document() -> None:
    lengths = [len(summary.summarize(REFERENCE[:size]).split()) for size in (3000, 30_000, 400_000)]
    assert lengths[0] < lengths[1] < lengths[2]
    assert lengths[0] >= 30
    assert lengths[2] <= 220


@pytest.mark.parametrize(
    "document",
    ["", " \n\n ", "one", "x" * 50_000, "- a\n- b\n" * 900, "\x00\ufffd", "これは文です。" * 30, "!" * 5000],
)
def test_any_document_gets_an_answer(document: str) -> None:
    extract = summary.summarize(document)
    assert extract.strip()
    assert len(extract) < 2500


def test_a_document_of_100k_tokens_takes_about_a_second() -> None:
    document = (REFERENCE * 2)[:430_000]
    begun = time.process_time()
    summary.summarize(document)
    assert time.process_time() - begun < 3  # 0.4 s where nothing else runs


def test_the_oracle_depends_on_the_whole_prompt_and_on_nothing_else() -> None:
    text = oracle.expected_text([128000, 5, 6, *HEADER])
    assert text == oracle.expected_text(np.array([128000, 5, 6, *HEADER]).tolist())
    assert text != oracle.expected_text([128000, 6, 5, *HEADER])
    assert oracle.MIN_WORDS <= len(text.split()) <= oracle.MAX_WORDS
