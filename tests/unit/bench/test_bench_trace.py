"""The engine's trace becomes requests, what they asked for, and the gaps between them."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.report import judge
from bench.simulation.engine_model import CAPACITY
from bench.simulation.workloads import make
from bench.stand import trace
from bench.stand.documents import Author
from bench.stand.trace import Request
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import Tokenizer


def request(name: str, came: float, began: float, ended: float, *, prompt: int = 100) -> Request:
    return Request(name, prompt, limit=28, generated=10, came=came, began=began, ended=ended)


def test_lines_become_requests_and_segments_of_one_name_stay_apart(tmp_path: Path) -> None:
    lines = [
        [1.0, "came", "a", 100, 50, 0, 0.0, 0],
        [1.1, "began", "a", 100, 50, 0, 0.0, 0],
        [2.0, "ended", "a", 100, 50, 50, 0.2, 0],
        [2.1, "came", "a", 150, 50, 0, 0.0, 0],
        [2.2, "began", "a", 150, 50, 0, 0.2, 0],
        [2.3, "came", "b", 100, 50, 0, 0.0, 0],
        [3.0, "ended", "a", 150, 50, 7, 0.3, 3],
    ]
    file = tmp_path / "trace"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    seen = trace.read(file, since=0.5, until=9.0)
    assert [(each.prompt_tokens, each.generated) for each in seen.requests] == [(100, 50), (150, 7)]
    assert [each.reused_blocks for each in seen.requests] == [0, 3]
    assert seen.num_open == 1
    assert seen.lost_s == pytest.approx(0.3)
    assert trace.read(file, since=4.0, until=9.0).requests == []


def test_what_was_asked_counts_requests_that_the_engine_made_wait() -> None:
    waiting = [request("a", 0, 0, 5), request("b", 1, 5, 6), request("c", 5, 6, 7)]
    assert trace.most_asked(waiting, CAPACITY) == (2, 4)
    assert max(moment.slots for moment in trace.occupancy(waiting, CAPACITY, since=0)) == 1


def test_a_request_that_comes_as_another_ends_asks_for_no_more_than_there_is() -> None:
    assert trace.most_asked([request("a", 0, 0, 5), request("b", 5, 5, 6)], CAPACITY) == (1, 2)


def test_a_gap_reaches_from_a_free_slot_to_the_request_that_fills_it() -> None:
    requests = [
        request("a", 0, 0, 5.0),
        request("b", 0, 0, 6.0),
        request("c", 5.2, 5.3, 9.0),
        request("d", 6.1, 6.4, 9.5),
    ]
    gaps = trace.refills(requests, slots=2)
    assert np.allclose(gaps, [(0.2, 0.3), (0.1, 0.4)])


def test_prompts_have_exactly_the_tokens_that_their_specs_say() -> None:
    tokenizer = Tokenizer.load()
    prompts = Author(tokenizer).write(make("MOON", seed=1, num_jobs=8, max_tokens=2048), seed=1)
    for prompt in prompts:
        encoded = tokenizer.encode_messages([Message("user", prompt.text)])
        assert encoded.tolist() == prompt.ids.tolist()
        assert len(encoded) == prompt.spec.prompt_tokens
    assert len({prompt.text for prompt in prompts}) == 8


def test_a_goal_is_met_on_its_own_side() -> None:
    def met(values: list[float], goal: str) -> bool | None:
        return judge("1", "", values, goal=goal, peer="", scale="", seeds=1).met

    assert met([0.9, 0.97, 0.98], ">= 0.96")
    assert met([0.9, 0.95, 0.98], ">= 0.96") is False
    assert met([12, 11, 30], "<= 12")
    assert met([1], "") is None
