"""The benchmark of a full vLLM without a GPU: arithmetic, bounds, and where the stand-in ends answers."""

import resource
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu.vllm.gauges import Counters, Sample
from bench.gpu.vllm.lists import Listing
from bench.gpu.vllm.marks import find_marks
from bench.http_streams.__main__ import parsed, rows
from bench.http_streams.engine import Script
from bench.http_streams.run import CLIENT, LONGBATCH, Run, Shape, least_steps, share_full
from bench.stand.documents import Author
from jobs.prompts.tokenizer import Tokenizer


def samples(*gauges: tuple[float, int, int]) -> list[Sample]:
    """Samples of moment, running and waiting requests."""
    return [Sample(at, running, waiting, kv=0, counters=Counters()) for at, running, waiting in gauges]


def test_the_share_counts_the_time_in_which_jobs_wait_outside_the_engine() -> None:
    found = samples((9, 4, 0), (10, 0, 0), (11, 2, 0), (12, 4, 0), (13, 1, 0))

    assert share_full(found, 4, began=10, queued_until=12) == pytest.approx(0.5)


def test_the_share_counts_the_time_in_which_requests_wait_inside_the_engine() -> None:
    found = samples((10, 4, 3), (11, 2, 1), (12, 1, 0))

    assert share_full(found, 4, began=10, queued_until=10) == pytest.approx(0.75)


def test_a_list_of_which_nothing_waited_has_no_share() -> None:
    with pytest.raises(ValueError, match="more jobs than slots"):
        share_full(samples((10.2, 3, 0)), 4, began=10, queued_until=10.1)


@pytest.mark.parametrize(
    ("lengths", "slots", "steps"),
    [([3, 4, 5], 1, 12), ([3, 4, 5], 3, 5), ([3, 4, 5], 8, 5), ([3, 4, 5], 2, 8), ([2, 2, 2, 2], 2, 4)],
)
def test_the_limit_begins_the_next_answer_in_the_first_free_slot(
    lengths: Sequence[int], slots: int, steps: int
) -> None:
    assert least_steps(lengths, slots) == steps


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 8))
def test_the_limit_is_neither_below_full_slots_nor_above_one_answer_more(
    lengths: list[int], slots: int
) -> None:
    full = -(-sum(lengths) // slots)

    assert max(full, *lengths) <= least_steps(lengths, slots) <= full + max(lengths)


def test_an_answer_ends_at_its_mark_also_when_it_is_continued(tokenizer: Tokenizer) -> None:
    author = Author(tokenizer)
    script = Script(find_marks(author), tokenizer)
    (prompt,) = author.write(Listing.parse("DECODE:3:1").specs(), seed=3)
    ids = prompt.ids.tolist()
    whole = len(ids) + prompt.spec.output_tokens

    assert script.length(ids) == whole
    assert script.length([*ids, *script.ids[:30]]) == whole
    assert script.length([5]) is None


@pytest.mark.parametrize(
    ("arguments", "bound"),
    [
        (["--slots", "0"], "from 1 to 4,096"),
        (["--step", "nan"], "from 0.005 to 1.0"),
        (["--step", "soon"], "must be a number"),
        (["--blocks", "140"], "from 141 to 1,000,000"),
        (["--jobs", "20001"], "from 2 to 20,000"),
        (["--jobs", "1024"], "more than --slots, 1024"),
        (["--patience", "inf"], "from 1.0 to 3,600.0"),
    ],
)
def test_arguments_have_bounds(arguments: list[str], bound: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(arguments)

    assert bound in capsys.readouterr().err


def test_too_few_open_files_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    with pytest.raises(SystemExit):
        parsed([])

    assert (
        "--jobs 2000 needs 2064 open files, and the hard limit is 1024: raise it" in capsys.readouterr().err
    )


def test_the_table_has_the_worker_s_cpu_for_one_token() -> None:
    shape = Shape(slots=2, step_s=0.5, blocks=141)
    runs = [
        Run(CLIENT, 4.0, full=1, late=0, num_tokens=12, cpu_s={}, faults=0),
        Run(LONGBATCH, 5.0, full=0.9, late=0, num_tokens=10, cpu_s={"inference_worker": 0.002}, faults=1),
    ]

    found = {each.target: each for each in rows(runs, [3, 4, 5], shape, seed=1)}

    assert found["worker, CPU microseconds a token"].measured == pytest.approx(200)
    assert found["limit, seconds"].measured == pytest.approx(4)
    assert found["longbatch: limit over its seconds"].measured == pytest.approx(0.8)
    assert found["longbatch: jobs without one right answer"].met is False
