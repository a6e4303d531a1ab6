from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulation.engine import Sequence, VirtualEngine
from bench.simulation.engine_model import A6000, CAPACITY, chunk_pairs
from bench.simulation.occupancy import average, columns

SMALL = replace(
    A6000,
    chunk=64,
    capacity=replace(CAPACITY, max_blocks=12, tokens_per_block=16, max_input_len=150, max_seq_len=190),
)
requests = st.lists(
    st.tuples(st.integers(1, 150), st.integers(1, 40), st.floats(0, 2)), min_size=1, max_size=12
)


def one_by_one(sizes: list[tuple[int, int, float]]) -> tuple[dict[int, float], int]:
    """Ends of all requests and the iterations, each iteration computed from the definition."""
    now, iterations, ends = 0.0, 0, dict[int, float]()
    waiting = [[job, prompt, new, 0, 0, ready] for job, (prompt, new, ready) in enumerate(sizes)]
    active: list[list[float]] = []
    while waiting or active:
        for one in [each for each in waiting if each[5] <= now]:
            reserved = sum(-(-(each[1] + each[2]) // 16) for each in [*active, one])
            if len(active) == 4 or reserved > 12:
                break
            waiting.remove(one)
            active.append(one)
        if not active:
            now = min(each[5] for each in waiting)
            continue
        budget, took = 64.0, SMALL.weights_s
        for one in active:
            if one[3] < one[1]:
                tokens = min(budget, one[1] - one[3])
                if not tokens:
                    continue
                budget -= tokens
                took += SMALL.prefill_s * tokens
                took += SMALL.pair_s * sum(one[3] + place for place in range(1, int(tokens) + 1))
                one[3] += tokens
                one[4] += one[3] == one[1]
            else:
                one[3] += 1
                one[4] += 1
            took += SMALL.kv_s * one[3]
        now, iterations = now + took, iterations + 1
        ends |= {int(one[0]): now for one in active if one[4] == one[2]}
        active = [one for one in active if one[4] < one[2]]
    return ends, iterations


@given(requests)
def test_skipping_iterations_gives_what_stepping_through_them_gives(
    sizes: list[tuple[int, int, float]],
) -> None:
    sizes = sorted(sizes, key=lambda each: each[2])
    engine = VirtualEngine(SMALL)
    for job, (prompt, new, ready) in enumerate(sizes):
        engine.submit(Sequence(job, prompt, new, blocks=-(-(prompt + new) // 16), ready_at=ready))
    ends: dict[int, float] = {}
    while len(ends) < len(sizes):
        ends |= {each.job: engine.now for each in engine.advance(inf)}
    expected, iterations = one_by_one(sizes)
    assert engine.iterations == iterations
    assert ends == pytest.approx(expected, rel=1e-9)


@given(requests, st.floats(0.01, 1))
def test_looking_in_between_changes_nothing(sizes: list[tuple[int, int, float]], every: float) -> None:
    ends: list[dict[int, float]] = [{}, {}]
    for found, step in zip(ends, (inf, every), strict=True):
        engine = VirtualEngine(SMALL)
        for job, (prompt, new, _) in enumerate(sizes):
            engine.submit(Sequence(job, prompt, new, blocks=-(-(prompt + new) // 16)))
        while len(found) < len(sizes):
            found |= {each.job: engine.now for each in engine.advance(engine.now + step)}
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_one_request_that_does_not_fit_stops_those_behind_it() -> None:
    engine = VirtualEngine(SMALL)
    for job, blocks in enumerate((8, 8, 2)):
        engine.submit(Sequence(job, 16, 10 + job, blocks))
    assert [each.job for each in engine.advance(inf)] == [0]
    assert [each.job for each in engine.advance(inf)] == [1]
    assert engine.occupancy[0].booked_blocks == 8


def test_a_withdrawn_request_frees_its_blocks() -> None:
    engine = VirtualEngine(SMALL)
    engine.submit(Sequence(0, 16, 100, 8))
    engine.submit(Sequence(1, 16, 10, 8))
    engine.advance(0.1)
    assert engine.withdraw(0).produced > 0
    assert [each.job for each in engine.advance(inf)] == [1]


def test_pairs_do_not_depend_on_how_a_prompt_is_cut() -> None:
    assert chunk_pairs(100, cached=0) == chunk_pairs(64, cached=0) + chunk_pairs(36, cached=64) == 5050


def test_a_96k_prompt_takes_what_the_roofline_of_an_a6000_says() -> None:
    engine = VirtualEngine(A6000)
    engine.submit(Sequence(0, 96_000, 1, 1501))
    engine.advance(inf)
    assert engine.iterations == 12
    assert engine.now == pytest.approx(51.4, abs=0.5)


def test_occupancy_has_equal_columns_and_averages_over_time() -> None:
    engine = VirtualEngine(SMALL)
    engine.submit(Sequence(0, 16, 10, 8))
    engine.submit(Sequence(1, 16, 10, 4, ready_at=5.0))
    while engine.waiting or engine.active:
        engine.advance(inf)
    drawn = columns(engine.occupancy)
    assert {len(column) for column in drawn.values()} == {4}
    assert drawn["slots"] == [1, 0, 1, 0]
    assert 0 < average(engine.occupancy, lambda moment: moment.slots) < 0.2
