from uuid import uuid4

import pytest

from jobs.batches.ahead import Ahead
from jobs.files.lines import FileLine


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def never() -> str:
    raise AssertionError("it was made ahead")


def test_what_was_made_ahead_is_taken_once() -> None:
    ahead, batch_id = Ahead[str](), uuid4()
    ahead.begin(batch_id, 500, lambda: "ahead")
    assert ahead.take(batch_id, 500, never) == "ahead"
    assert ahead.take(batch_id, 500, lambda: "now") == "now"


def test_what_was_made_ahead_of_other_lines_is_dropped() -> None:
    ahead, batch_id = Ahead[str](), uuid4()
    ahead.begin(batch_id, 500, lambda: "ahead")
    assert ahead.take(batch_id, 0, lambda: "now") == "now"
    assert ahead.take(batch_id, 500, lambda: "now") == "now"


def test_a_failure_ahead_is_told_to_whoever_takes_it_and_to_nobody_else() -> None:
    ahead, batch_id = Ahead[str](), uuid4()
    ahead.begin(batch_id, 0, never)
    with pytest.raises(AssertionError):
        ahead.take(batch_id, 0, lambda: "now")
    assert ahead.take(batch_id, 0, lambda: "now") == "now"


def test_few_batches_have_lines_ready_and_forgotten_ones_make_room() -> None:
    clock = Clock()
    ahead = Ahead[str](clock)
    batch_ids = [uuid4() for _ in range(6)]
    for batch_id in batch_ids:
        ahead.begin(batch_id, 0, lambda: "ahead")
    taken = [ahead.take(batch_id, 0, lambda: "now") for batch_id in batch_ids[1:]]
    assert taken == ["ahead"] * 3 + ["now"] * 2
    clock.now += 60
    for batch_id in batch_ids[1:5]:
        ahead.begin(batch_id, 0, lambda: "ahead")
    taken = [ahead.take(batch_id, 0, lambda: "now") for batch_id in batch_ids[:5]]
    assert taken == ["now"] + ["ahead"] * 4


def test_lines_that_were_read_are_kept_once_and_for_their_place_alone() -> None:
    clock = Clock()
    ahead, lines = Ahead[str](clock), [FileLine(501, b"{}", 1503)]
    batch_ids = [uuid4() for _ in range(6)]
    for batch_id in batch_ids:
        ahead.keep(batch_id, lines, start=1500)
    kept = [ahead.kept(batch_id, start=1500) for batch_id in batch_ids]
    assert kept == [lines] * 4 + [()] * 2, "few batches have lines ready"
    assert not ahead.kept(batch_ids[0], start=1500)
    ahead.keep(batch_ids[0], lines, start=1500)
    assert not ahead.kept(batch_ids[0], start=0)
    ahead.keep(batch_ids[1], lines, start=1500)
    clock.now += 60
    ahead.keep(batch_ids[2], lines, start=1500)
    assert not ahead.kept(batch_ids[1], start=1500), "forgotten ones make room"
