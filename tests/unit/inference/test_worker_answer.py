import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.checkpoints import Output
from jobs.ids import uuid7
from jobs.prompts.tokenizer import Tokenizer
from jobs.states import FinishReason
from worker.inference.answer import Answer
from worker.inference.live_output import OutputPublisher

TOKENIZER = Tokenizer.load()
TEXT = "Answers stop. 日本語 🙂🙂 END of this; the END. And a tail that is never said."
IDS = TOKENIZER.encode_text(TEXT).tolist()


def told(*runs: list[int], stops: tuple[str, ...], max_tokens: int) -> tuple[Output, object]:
    """The answer whose tokens came in these runs, each but the last one interrupted."""
    taken: list[int] = []
    for place, run in enumerate(runs):
        answer = Answer(TOKENIZER, max_tokens=max_tokens, stops=stops)
        answer.resume(taken)
        answer.push(run)
        if place < len(runs) - 1:
            taken = [*taken, *run][: answer.snapshot().num_tokens]
    return answer.output(), answer.finish_reason


@pytest.mark.parametrize("stops", [(), ("END",), ("the END. And",), ("🙂 E", "nowhere")])
@given(cuts=st.lists(st.integers(0, len(IDS)), max_size=3), max_tokens=st.integers(1, len(IDS) + 5))
def test_an_interrupted_answer_says_what_an_uninterrupted_one_says(
    stops: tuple[str, ...], cuts: list[int], max_tokens: int
) -> None:
    bounds = [0, *sorted(cuts), len(IDS)]
    runs = [IDS[start:end] for start, end in itertools.pairwise(bounds)]
    whole = told(IDS, stops=stops, max_tokens=max_tokens)
    assert told(*runs, stops=stops, max_tokens=max_tokens) == whole


def test_a_taken_over_answer_streams_only_once_a_new_token_has_come() -> None:
    answer = Answer(TOKENIZER, max_tokens=10)
    answer.resume(IDS[:3])
    assert not answer.is_streaming
    answer.push(IDS[3:4])
    assert answer.is_streaming


@pytest.mark.parametrize("cut", range(1, len(IDS)))
def test_a_stop_string_across_the_end_of_a_segment_ends_the_answer_for_live_readers_too(cut: int) -> None:
    told: list[str] = []
    answer = Answer(TOKENIZER, max_tokens=1000, stops=["the END. And a tail"])
    publisher = OutputPublisher(lambda _, delta: told.append(delta.text), uuid7(), answer, interval=0)
    for run in (IDS[:cut], IDS[cut:]):
        answer.begin_segment(until=answer.num_tokens + len(run))
        for token_id in run:
            answer.push([token_id])
            publisher.publish()
    publisher.collect()
    output = answer.output()
    publisher.end(is_final=True)
    assert answer.finish_reason is FinishReason.STOP
    assert output.text == "".join(told) == TEXT.partition("the END")[0]
