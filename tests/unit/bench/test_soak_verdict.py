"""The judge of a soak: a run in which all went well is good; each thing that can go wrong is named."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from bench.soak.curves import growth_of
from bench.soak.journal import Promise
from bench.soak.load import ENDPOINT, HOOK
from bench.soak.receiver import Told
from bench.soak.sightings import JobEnd, ObjectEnd, Sightings
from bench.soak.verdict import Verdict, judge

END = JobEnd(
    state="completed",
    task="summarize",
    custom_id="a",
    finalized_at="2026-01-31T12:00:00Z",
    has_run=True,
    prompt_tokens=10,
    completion_tokens=5,
    attempt=0,
    error=None,
)


def told(object_id: str, kind: str, path: str, *, event: str | None = None, status: int = 204) -> Told:
    return Told(event or f"evt_{object_id}", path, kind, object_id, f"body {event or object_id}", status)


@dataclass
class Run:
    """A run with two equal jobs, a cancelled one, and a batch of two lines."""

    promises: list[Promise] = field(
        default_factory=lambda: [
            Promise("job", "job_a", "a", prompt="text 1", path=HOOK),
            Promise("job", "job_b", "b", prompt="text 1", path=HOOK),
            Promise("job", "job_c", "c", prompt="text 1", path=HOOK, is_cancelled=True),
            Promise("batch", "batch_d", "d", path=HOOK, parts=2),
        ]
    )
    seen: Sightings = field(
        default_factory=lambda: Sightings(
            jobs={
                "job_a": END,
                "job_b": replace(END, custom_id="b"),
                "job_c": replace(END, custom_id="c", state="cancelled", has_run=False, completion_tokens=0),
            },
            outputs={"job_a": "same", "job_b": "same", "job_c": None},
            runs={"job_a": ["lost", "completed"], "job_b": ["completed"], "job_c": []},
            objects={"batch_d": ObjectEnd("completed", {"line-0": 1, "line-1": 1})},
            usage={
                "jobs completed": 2,
                "jobs cancelled": 1,
                "jobs failed": 0,
                "jobs expired": 0,
                "prompt_tokens": 20,
                "completion_tokens": 10,
            },
        )
    )
    told: list[Told] = field(
        default_factory=lambda: [
            told(each, kind, path)
            for each, kind in (
                ("job_a", "job.completed"),
                ("job_b", "job.completed"),
                ("job_c", "job.cancelled"),
                ("batch_d", "batch.completed"),
            )
            for path in (HOOK, ENDPOINT)
        ]
    )
    chats: list[tuple[str, str]] = field(default_factory=lambda: [("chat 1", "yes"), ("chat 1", "yes")])

    def verdict(self) -> Verdict:
        return judge(self.promises, self.seen, self.told, chats=self.chats)


def test_a_run_in_which_every_promise_was_kept_once_is_good() -> None:
    run = Run()
    run.told += [run.told[0], told("job_b", "job.completed", HOOK, status=500)]  # told again, under its id
    assert run.verdict() == Verdict()


def lose_a_job(run: Run) -> None:
    del run.seen.jobs["job_a"], run.seen.runs["job_a"]


def leave_a_job_open(run: Run) -> None:
    run.seen.open.add("job_of_a_summary")


def lose_an_output(run: Run) -> None:
    run.seen.outputs["job_a"] = None


def lose_a_line(run: Run) -> None:
    del run.seen.objects["batch_d"].parts["line-1"]


def lose_a_batch(run: Run) -> None:
    run.seen.objects.clear()


def never_tell_the_endpoint(run: Run) -> None:
    run.told = [each for each in run.told if (each.object_id, each.path) != ("job_b", ENDPOINT)]


def tell_in_vain(run: Run) -> None:
    run.told = [
        replace(each, status=500) if (each.object_id, each.path) == ("batch_d", HOOK) else each
        for each in run.told
    ]


LOSSES = (
    *(lose_a_job, leave_a_job_open, lose_an_output, lose_a_line, lose_a_batch),
    *(never_tell_the_endpoint, tell_in_vain),
)


@pytest.mark.parametrize("spoil", LOSSES)
def test_what_is_lost_is_named(spoil: Callable[[Run], None]) -> None:
    run = Run()
    spoil(run)
    assert run.verdict().lost


def store_a_job_twice(run: Run) -> None:
    run.seen.jobs["job_again"] = END


def accept_a_request_twice(run: Run) -> None:
    run.promises.append(replace(run.promises[-1], id="batch_again"))


def complete_two_runs(run: Run) -> None:
    run.seen.runs["job_a"].append("completed")


def write_a_line_twice(run: Run) -> None:
    run.seen.objects["batch_d"].parts["line-1"] = 2


def answer_equal_prompts_differently(run: Run) -> None:
    run.seen.outputs["job_b"] = "another"


def answer_equal_chats_differently(run: Run) -> None:
    run.chats.append(("chat 1", "no"))


def tell_under_a_second_id(run: Run) -> None:
    run.told.append(told("job_a", "job.completed", HOOK, event="evt_second"))


def tell_with_another_body(run: Run) -> None:
    run.told.append(replace(run.told[0], digest="another"))


DOUBLES = (
    *(store_a_job_twice, accept_a_request_twice, complete_two_runs, write_a_line_twice),
    *(
        answer_equal_prompts_differently,
        answer_equal_chats_differently,
        tell_under_a_second_id,
        tell_with_another_body,
    ),
)


@pytest.mark.parametrize("spoil", DOUBLES)
def test_what_is_doubled_is_named(spoil: Callable[[Run], None]) -> None:
    run = Run()
    spoil(run)
    assert run.verdict().doubled


def tell_another_state(run: Run) -> None:
    run.told[0] = replace(run.told[0], type="job.failed")


def tell_of_a_stranger(run: Run) -> None:
    run.told.append(told("job_x", "job.completed", HOOK))


def cancel_what_nobody_cancelled(run: Run) -> None:
    run.seen.jobs["job_a"] = replace(END, state="cancelled")


def charge_a_token_too_many(run: Run) -> None:
    run.seen.usage["completion_tokens"] += 1


def change_after_the_end(run: Run) -> None:
    run.seen.faults.append("job_a changed after its end")


@pytest.mark.parametrize(
    "spoil",
    [
        tell_another_state,
        tell_of_a_stranger,
        cancel_what_nobody_cancelled,
        charge_a_token_too_many,
        change_after_the_end,
    ],
)
def test_what_contradicts_itself_is_named(spoil: Callable[[Run], None]) -> None:
    run = Run()
    spoil(run)
    assert run.verdict().wrong


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([100, 105] * 10, "flat"), (range(100, 160, 3), "grows"), ([100] * 12 + [140] * 8, "grows")],
)
def test_a_curve_that_keeps_growing_is_not_flat(values: Sequence[int], verdict: str) -> None:
    growth = growth_of("memory", "api 1", [(10.0 * at, value) for at, value in enumerate(values)])
    assert growth is not None
    assert growth.is_flat is (verdict == "flat")


def test_a_curve_of_a_few_points_says_nothing() -> None:
    assert growth_of("memory", "api 1", [(10.0 * at, 1.0) for at in range(5)]) is None
