"""The verdict on a restore names what was lost, what came back, and what ran a second time."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.restore.verdict import Life, judge
from bench.soak.journal import Promise
from bench.soak.sightings import JobEnd, Sightings

END = JobEnd(
    "completed",
    "summarize",
    None,
    "12:00",
    has_run=True,
    prompt_tokens=9,
    completion_tokens=3,
    attempt=0,
    error=None,
)
EARLIER = [Promise("job", name, name, prompt=name) for name in ("ended", "open")]
LATER = [Promise("job", "later", "later", prompt="ended")]
AGAIN = [Promise("job", "later-2", "later", prompt="ended")]


def seen(*names: str) -> Sightings:
    return Sightings(
        jobs=dict.fromkeys(names, END),
        outputs={name: "of open" if name == "open" else "of ended" for name in names},
        runs={name: ["completed"] for name in names},
    )


class Restored:
    """A restore after which all is as it should be."""

    def __init__(self) -> None:
        self.life = Life("12:01", EARLIER, LATER, frozenset({"ended"}), seen("ended", "open", "later"))
        self.seen = seen("ended", "open", "later-2")
        self.seen.runs["open"] = ["lease_lost", "completed"]
        self.again = AGAIN

    def faults(self) -> list[str]:
        return judge(self.life, self.seen, self.again)


def test_a_restore_to_the_moment_is_good() -> None:
    assert Restored().faults() == []


def lose_one(restored: Restored) -> None:
    del restored.seen.jobs["ended"]


def fail_what_was_open(restored: Restored) -> None:
    restored.seen.jobs["open"] = replace(END, state="failed")


def complete_twice(restored: Restored) -> None:
    restored.seen.runs["open"] = ["completed", "completed"]


def run_again_what_had_ended(restored: Restored) -> None:
    restored.seen.runs["ended"] = ["lease_lost", "completed"]


def end_again_what_had_ended(restored: Restored) -> None:
    restored.seen.jobs["ended"] = replace(END, finalized_at="12:05")


def answer_otherwise(restored: Restored) -> None:
    restored.seen.outputs["open"] = "another"


def find_what_came_later(restored: Restored) -> None:
    restored.again = LATER
    restored.seen = seen("ended", "open", "later")


@pytest.mark.parametrize(
    "spoil",
    [
        *(lose_one, fail_what_was_open, complete_twice, run_again_what_had_ended),
        *(end_again_what_had_ended, answer_otherwise, find_what_came_later),
    ],
)
def test_a_bad_restore_is_named(spoil: Callable[[Restored], None]) -> None:
    restored = Restored()
    spoil(restored)
    assert restored.faults()
