"""The live output of an interrupted job equals its result: each character once."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ids import uuid7
from jobs.live_output import Delta
from jobs.prompts.tokenizer import Tokenizer
from worker.inference.answer import Answer
from worker.inference.live_output import OutputPublisher

TEXT = "日本語 🙂🙂 EN of this; the END. And a tail."
NUM_IDS = 16  # of it; known here, so that no process loads the tokenizer only to collect tests


@pytest.fixture(scope="module")
def ids(tokenizer: Tokenizer) -> list[int]:
    found = tokenizer.encode_text(TEXT).tolist()
    assert len(found) == NUM_IDS
    return found


def read(deltas: list[Delta]) -> str:
    said = ""
    for delta in deltas:
        said += delta.text[len(said) - delta.at :] if delta.at <= len(said) else ""
    return said


@pytest.mark.parametrize("stops", [(), ("END",)])
@given(cuts=st.lists(st.integers(0, NUM_IDS), max_size=3))
def test_what_readers_of_an_interrupted_job_have_read_is_its_result(
    tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...], cuts: list[int]
) -> None:
    deltas: list[Delta] = []
    taken: list[int] = []
    bounds = [0, *sorted(cuts), NUM_IDS]
    for start, end in itertools.pairwise(bounds):
        answer = Answer(tokenizer, max_tokens=NUM_IDS + 5, stops=stops)
        publisher = OutputPublisher(lambda _, delta: deltas.append(delta), uuid7(), answer, interval=0)
        answer.resume(taken)
        for token_id in ids[start:end]:
            answer.push([token_id])
            publisher.publish()
        taken = ids[: answer.num_tokens]
        publisher.collect()
        output = answer.output()
        publisher.end(is_final=end == NUM_IDS or answer.finish_reason is not None)
    assert read(deltas) == output.text
