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

TOKENIZER = Tokenizer.load()
IDS = TOKENIZER.encode_text("日本語 🙂🙂 EN of this; the END. And a tail.").tolist()


def read(deltas: list[Delta]) -> str:
    said = ""
    for delta in deltas:
        said += delta.text[len(said) - delta.at :] if delta.at <= len(said) else ""
    return said


@pytest.mark.parametrize("stops", [(), ("END",)])
@given(cuts=st.lists(st.integers(0, len(IDS)), max_size=3))
def test_what_readers_of_an_interrupted_job_have_read_is_its_result(
    stops: tuple[str, ...], cuts: list[int]
) -> None:
    deltas: list[Delta] = []
    taken: list[int] = []
    bounds = [0, *sorted(cuts), len(IDS)]
    for start, end in itertools.pairwise(bounds):
        answer = Answer(TOKENIZER, max_tokens=len(IDS) + 5, stops=stops)
        publisher = OutputPublisher(lambda _, delta: deltas.append(delta), uuid7(), answer, interval=0)
        answer.resume(taken)
        for token_id in IDS[start:end]:
            answer.push([token_id])
            publisher.publish()
        taken = IDS[: answer.num_tokens]
        publisher.collect()
        output = answer.output()
        publisher.end(is_final=end == len(IDS) or answer.finish_reason is not None)
    assert read(deltas) == output.text
