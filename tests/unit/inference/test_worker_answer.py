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

TEXT = "Answers stop. 日本語 🙂🙂 END of this; the END. And a tail that is never said."
NUM_IDS = 23  # of it; known here, so that no process loads the tokenizer only to collect tests


@pytest.fixture(scope="module")
def ids(tokenizer: Tokenizer) -> list[int]:
    found = tokenizer.encode_text(TEXT).tolist()
    assert len(found) == NUM_IDS
    return found


def told(
    tokenizer: Tokenizer, *runs: list[int], stops: tuple[str, ...], max_tokens: int
) -> tuple[Output, object]:
    """The answer whose tokens came in these runs, each but the last one interrupted."""
    taken: list[int] = []
    for place, run in enumerate(runs):
        answer = Answer(tokenizer, max_tokens=max_tokens, stops=stops)
        answer.resume(taken)
        answer.push(run)
        if place < len(runs) - 1:
            taken = [*taken, *run][: answer.snapshot().num_tokens]
    return answer.output(), answer.finish_reason


@pytest.mark.parametrize("stops", [(), ("END",), ("the END. And",), ("🙂 E", "nowhere")])
@given(cuts=st.lists(st.integers(0, NUM_IDS), max_size=3), max_tokens=st.integers(1, NUM_IDS + 5))
def test_an_interrupted_answer_says_what_an_uninterrupted_one_says(
    tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...], cuts: list[int], max_tokens: int
) -> None:
    bounds = [0, *sorted(cuts), NUM_IDS]
    runs = [ids[start:end] for start, end in itertools.pairwise(bounds)]
    whole = told(tokenizer, ids, stops=stops, max_tokens=max_tokens)
    assert told(tokenizer, *runs, stops=stops, max_tokens=max_tokens) == whole


def test_a_taken_over_answer_streams_only_once_a_new_token_has_come(
    tokenizer: Tokenizer, ids: list[int]
) -> None:
    answer = Answer(tokenizer, max_tokens=10)
    answer.resume(ids[:3])
    assert not answer.is_streaming
    answer.push(ids[3:4])
    assert answer.is_streaming


@pytest.mark.parametrize("cut", range(1, NUM_IDS))
def test_a_stop_string_across_the_end_of_a_segment_ends_the_answer_for_live_readers_too(
    tokenizer: Tokenizer, ids: list[int], cut: int
) -> None:
    told: list[str] = []
    answer = Answer(tokenizer, max_tokens=1000, stops=["the END. And a tail"])
    publisher = OutputPublisher(lambda _, delta: told.append(delta.text), uuid7(), answer, interval=0)
    for run in (ids[:cut], ids[cut:]):
        answer.begin_segment(until=answer.num_tokens + len(run))
        for token_id in run:
            answer.push([token_id])
            publisher.publish()
    publisher.collect()
    output = answer.output()
    publisher.end(is_final=True)
    assert answer.finish_reason is FinishReason.STOP
    assert output.text == "".join(told) == TEXT.partition("the END")[0]
