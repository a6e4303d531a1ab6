"""The scores of an answer's tokens: whole however it is cut, and those of the text that readers see."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.answers import log_probs
from jobs.answers.log_probs import LEAST, LogProbs, Score, ScoredTokens
from jobs.checkpoints import Output
from jobs.ids import uuid7
from jobs.live_output import Delta, OutputPiece, decode, encode
from jobs.prompts.tokenizer import Tokenizer
from reasoning_support import thinking_tokenizer
from worker.inference.answer import Answer
from worker.inference.live_output import OutputPublisher

NUM_TOP = 2
TEXT = "One 日本語, two 🙂🙂.\n\nSTO, three\0, STOP and more."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


def score_of(place: int) -> Score:
    """A score that says where its token is."""
    return Score(-place / 4, [(1000 + place, -0.25), (2000, -0.5), (2001, -0.75)])


def told(
    answers: Sequence[Answer], ids: Sequence[int], cuts: Sequence[int]
) -> tuple[Output, LogProbs, OutputPiece]:
    """What a job generated in runs that end at these cuts, its scores, and what a live reader read."""
    deltas: list[Delta] = []
    saved: Output | None = None
    for answer, (begin, end) in zip(answers, itertools.pairwise([0, *cuts, len(ids)]), strict=True):
        publisher = OutputPublisher(lambda _, delta: deltas.append(delta), uuid7(), answer, interval=0)
        if saved is not None:
            assert saved.log_probs is not None
            answer.resume(ids[:begin][: saved.num_tokens], log_probs.read_scores(saved.log_probs))
        for place in range(begin, end):
            answer.push([ids[place]], [score_of(place)])
            publisher.publish()
        publisher.collect()
        saved = answer.output()
        is_last = end == len(ids) or answer.finish_reason is not None
        publisher.end(is_final=is_last)
        if is_last:
            break
    assert saved is not None
    assert saved.log_probs is not None
    return saved, log_probs.read(saved.log_probs), _seen(deltas, saved)


def _seen(deltas: Sequence[Delta], saved: Output) -> OutputPiece:
    """What a reader gets of the deltas, and of the result at the end."""
    text, scored = OutputPiece("", ""), list[LogProbs]()
    rest = OutputPiece(saved.reasoning, saved.text, log_probs.read(saved.log_probs or b""))
    through_redis = [
        decode({k.encode(): v if isinstance(v, bytes) else v.encode() for k, v in encode(each).items()})
        for each in deltas
    ]
    for each in through_redis:
        new = each.after(text.num_chars, scored[-1].end if scored else 0)
        text = text.joined(new)
        scored += [new.log_probs] if new.log_probs else []
    end = scored[-1].end if scored else 0
    scored += [left] if rest.log_probs and (left := rest.log_probs.after(end)) else []
    assert [each.first for each in scored] == [0, *(each.end for each in scored)][: len(scored)]
    joined = LogProbs(
        first=0,
        ids=[token_id for each in scored for token_id in each.ids],
        scores=[score for each in scored for score in each.scores],
        offsets=tuple(offset for each in scored for offset in each.offsets),
        spelled={token_id: name for each in scored for token_id, name in each.spelled.items()},
        num_top=NUM_TOP,
    )
    assert joined.spelled.items() <= (rest.log_probs.spelled.items() if rest.log_probs else set())
    return text._replace(log_probs=joined)


def assert_same(one: LogProbs | None, other: LogProbs) -> None:
    """They are of the same tokens; which others are spelled with them does not matter."""
    assert one is not None
    assert (one.for_chat(), one.for_text()) == (other.for_chat(), other.for_text())


def plain(tokenizer: Tokenizer, *, max_tokens: int = 1000) -> Answer:
    return Answer(tokenizer, max_tokens=max_tokens, stops=["STOP"], num_top=NUM_TOP)


@given(data=st.data())
def test_an_answer_cut_anywhere_has_the_scores_of_the_uncut_one(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    ids = tokenizer.encode_text(TEXT).tolist()
    max_tokens = data.draw(st.integers(1, len(ids) + 3))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    whole, scored, _ = told([plain(tokenizer, max_tokens=max_tokens)], ids, [])
    answers = [plain(tokenizer, max_tokens=max_tokens) for _ in range(len(cuts) + 1)]
    output, cut, seen = told(answers, ids, cuts)
    assert output == whole
    assert seen.text == output.text
    assert_same(seen.log_probs, cut)
    assert_same(cut, scored)
    assert [each.log_prob for each in scored.scores] == [-place / 4 for place in range(len(scored))]
    assert [each.top for each in scored.scores] == [
        [(1000 + place, -0.25), (2000, -0.5)] for place in range(len(scored))
    ]


def test_the_tokens_spell_the_text_up_to_a_stop_string(tokenizer: Tokenizer) -> None:
    output, scored, _ = told([plain(tokenizer)], tokenizer.encode_text(TEXT).tolist(), [])
    assert output.text == TEXT.replace("\0", "\ufffd")[: TEXT.find("STOP")]
    spelled = b"".join(scored.spelled[each] for each in scored.ids).decode()
    assert spelled.replace("\0", "\ufffd").startswith(output.text)
    assert scored.offsets[-1] < len(output.text), "a token that is shown in part is the last one"
    for place, offset in enumerate(scored.offsets):
        before = b"".join(scored.spelled[each] for each in scored.ids[:place])
        assert offset == len(before.decode(errors="ignore"))


def test_an_answer_that_ends_inside_a_character_has_the_scores_of_its_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_text("a 🦑").tolist()
    assert len(ids) > 3
    output, scored, seen = told([plain(tokenizer, max_tokens=len(ids) - 1)], ids, [])
    assert output.text == "a \ufffd"
    assert [*scored.ids] == ids[:-1]
    assert_same(seen.log_probs, scored)


def test_scores_are_those_of_visible_text_alone(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(str(thinking_tokenizer(tmp_path)))
    assert tokenizer.thinking is not None
    begin, end = tokenizer.thinking.begin, tokenizer.thinking.end
    ids = tokenizer.markup.read(f"{begin}\nOne, two.\n{end}\n\nVisible 🙂 text.").tolist()
    for cuts in ([], [2], [5, len(ids) - 2]):
        answers = [Answer(tokenizer, max_tokens=1000, num_top=NUM_TOP) for _ in range(len(cuts) + 1)]
        for answer in answers:
            answer.split_thinking(tokenizer.thinking, is_open=False)
        output, scored, seen = told(answers, ids, cuts)
        assert output.text == "Visible 🙂 text."
        assert b"".join(scored.spelled[each] for each in scored.ids).decode().lstrip() == output.text
        assert scored.scores[-1].log_prob == -(len(ids) - 1) / 4
        assert (seen.reasoning, seen.text) == (output.reasoning, output.text)
        assert_same(seen.log_probs, scored)


def test_a_checkpoint_without_scores_is_not_gone_on_from(tokenizer: Tokenizer) -> None:
    """A worker of the release before may have saved it."""
    answer = plain(tokenizer)
    answer.resume([5, 6, 7])
    assert answer.num_tokens == 0
    answer.push([5], [Score(-1)])
    with pytest.raises(ValueError, match="without their log probabilities"):
        answer.push([6])


def test_an_answer_that_nobody_wants_scores_of_has_none(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, max_tokens=10)
    answer.push([5, 6])
    assert answer.take_log_probs() is None
    assert answer.output().log_probs is None


def test_values_that_json_cannot_hold_are_bounded() -> None:
    scored = ScoredTokens(2, spell=lambda token_id: b"\xf0\x9f" if token_id == 1 else b"x")
    for value in (float("-inf"), float("nan"), 1e-9, -0.5):
        scored.add(1, Score(value, [(2, value)]), num_chars=1)
    found = log_probs.read(scored.packed(begin=0, end=4))
    assert [each.log_prob for each in found.scores] == [LEAST, LEAST, 0.0, -0.5]
    chat, text = found.for_chat(), found.for_text()
    assert chat["content"][0] == {
        "token": "\\xf0\\x9f",
        "logprob": LEAST,
        "bytes": [0xF0, 0x9F],
        "top_logprobs": [{"token": "x", "logprob": LEAST, "bytes": [0x78]}],
    }
    assert text == {
        "tokens": ["bytes:\\xf0\\x9f"] * 4,
        "token_logprobs": [LEAST, LEAST, 0.0, -0.5],
        "top_logprobs": [{"x": value, "bytes:\\xf0\\x9f": value} for value in (LEAST, LEAST, 0.0, -0.5)],
        "text_offset": [0, 1, 2, 3],
    }


def test_a_reader_that_missed_a_delta_gets_no_scores_out_of_order() -> None:
    scored = ScoredTokens(0, spell=lambda _: b"x")
    for place in range(6):
        scored.add(place, Score(-1), num_chars=1)
    later = log_probs.read(scored.packed(begin=1, end=6, first=3))
    assert (later.first, [*later.ids], [*later.offsets]) == (2, [3, 4, 5], [2, 3, 4])
    assert later.after(0) is None
    assert later.after(5) is None
    left = later.after(4)
    assert left is not None
    assert (left.first, [*left.ids]) == (4, [5])
    assert log_probs.read(scored.packed(begin=1, end=6)).for_text()["top_logprobs"] is None
