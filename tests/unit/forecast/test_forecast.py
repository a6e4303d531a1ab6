import sys
from datetime import timedelta
from statistics import median
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.forecast_error import StartPredictor, predict_starts
from bench.simulation.engine_model import A6000 as MODEL
from bench.simulation.workloads import make
from jobs.engines.capacity import Budget
from jobs.forecast.engine_speed import JobTiming, Speed, measure, reading_work
from jobs.forecast.simulation import EngineState, RemainingTokens
from jobs.forecast.start_times import Forecast, expected_tokens, forecast, later_s
from jobs.scheduling.packing import Candidate, PackingPolicy, Reserved
from jobs.states import Lane

RULES = PackingPolicy()
SPEED = Speed(step_s=0.1, read_s=0.001)
IDLE = Budget(free_slots=4, free_blocks=100, idle=True)


def uid(number: int) -> UUID:
    return UUID(int=number)


def waiting(number: int, blocks: int = 10, steps: int = 100, **fields: object) -> Candidate:
    return Candidate(uid(number), blocks, steps, **fields)  # type: ignore[arg-type]


def engine(
    candidates: list[Candidate], running: list[Reserved] | None = None, *, slots: int = 4, blocks: int = 100
) -> EngineState:
    held = running or []
    free = blocks - sum(each.blocks for each in held)
    budget = Budget(slots - len(held), free, idle=not held)
    return EngineState(candidates, held, budget, slots, SPEED)


def play(
    *engines: EngineState,
    prompt: int = 0,
    tokens: float = 100,
    horizon: int = 100,
    **lengths: RemainingTokens,
) -> Forecast:
    """Every job generates `tokens`, but for those named `job_N`."""
    ranked = {each.job_id for one in engines for each in one.candidates}
    known = ranked | {each.job_id for one in engines for each in one.reserved}
    given = {uid(int(name.removeprefix("job_"))): length for name, length in lengths.items()}
    every = {job_id: RemainingTokens(prompt, tokens) for job_id in known} | given
    return forecast(engines, every, policy=RULES, horizon=horizon)


def test_every_start_has_its_engine_and_its_end_and_so_has_what_runs() -> None:
    running = Reserved(uid(9), 90, steps_left=50)
    full, idle = engine([waiting(1)], [running]), engine([waiting(1), waiting(2, 95), waiting(3)])
    found = play(full, idle, job_9=RemainingTokens(0, 50))
    assert set(found.places) == set(found.starts) == {uid(1), uid(2), uid(3)}
    assert (found.places[uid(2)], found.places[uid(3)]) == (1, 1)
    assert found.ends[uid(9)] == pytest.approx(5.0)
    for job_id, start in found.starts.items():
        assert found.ends[job_id] == pytest.approx(start + 10.0)


def test_what_fits_starts_at_once() -> None:
    found = play(engine([waiting(1), waiting(2)]))
    assert found.at_once == {uid(1), uid(2)}
    assert set(found.starts.values()) == {0.0}


def test_with_one_slot_jobs_follow_each_other() -> None:
    found = play(engine([waiting(n) for n in (1, 2, 3)], slots=1))
    assert found.starts == pytest.approx({uid(1): 0, uid(2): 10, uid(3): 20})
    assert found.at_once == {uid(1)}


def test_a_job_waits_for_the_expected_end_of_a_running_one_not_for_the_end_of_its_reservation() -> None:
    busy = Reserved(uid(9), blocks=95, steps_left=5000)
    found = play(engine([waiting(1)], [busy]), job_9=RemainingTokens(0, 50))
    assert found.starts == pytest.approx({uid(1): 5})


def test_reading_a_prompt_holds_everybody_up() -> None:
    long, short = Reserved(uid(8), 10, 100), Reserved(uid(9), 90, 100)
    found = play(
        engine([waiting(1)], [long, short]), job_8=RemainingTokens(8192, 500), job_9=RemainingTokens(0, 50)
    )
    assert found.starts[uid(1)] == pytest.approx(5 + SPEED.reading_s(8192))


def test_jobs_that_read_together_read_one_after_another() -> None:
    first, second = Reserved(uid(8), 50, 100), Reserved(uid(9), 50, 100)
    found = play(
        engine([waiting(1)], [first, second]),
        job_8=RemainingTokens(8192, 500),
        job_9=RemainingTokens(8192, 10),
    )
    assert found.starts[uid(1)] == pytest.approx(0.1 * (2 + 10) + 2 * SPEED.reading_s(8192))


def test_what_drains_ends_soon() -> None:
    found = forecast(
        [engine([waiting(1, 100)], [Reserved(uid(9), 10, 0)])],
        {uid(1): RemainingTokens(0, 1)},
        policy=RULES,
        horizon=9,
    )
    assert (found.at_once, found.starts) == (frozenset(), {uid(1): 0.0})


def test_a_job_that_fits_is_kept_waiting_when_it_would_postpone_the_head() -> None:
    head = waiting(1, 95, waited=timedelta(hours=1))
    later = waiting(2, 10, steps=9000)
    busy = [Reserved(uid(8), 45, 100), Reserved(uid(9), 45, 10)]
    found = play(engine([head, later], busy), job_9=RemainingTokens(0, 10), job_2=RemainingTokens(0, 9000))
    assert found.kept_waiting == {uid(2)}
    assert found.starts[uid(1)] < found.starts[uid(2)]


def test_a_suspect_runs_alone() -> None:
    suspect = waiting(1, alone=True, waited=timedelta(hours=1))
    found = play(engine([suspect, waiting(2, steps=500)], [Reserved(uid(9), 10, 100)]))
    assert found.starts == pytest.approx({uid(1): 10, uid(2): 20})
    assert found.kept_waiting == {uid(2)}


def test_nobody_starts_beside_a_suspect_that_runs() -> None:
    state = EngineState([waiting(1)], [Reserved(uid(9), 10, 100)], Budget(0, 90, idle=False), 4, SPEED)
    assert play(state).starts == pytest.approx({uid(1): 10})


def test_the_interactive_lane_goes_first() -> None:
    batch, asked = waiting(1, 100), waiting(2, 100, lane=Lane.INTERACTIVE)
    assert list(play(engine([batch, asked])).starts) == [uid(2), uid(1)]


def test_engines_share_the_queue() -> None:
    queue = [waiting(n, 100) for n in (1, 2, 3, 4)]
    found = play(engine(queue), engine(queue))
    assert found.starts == pytest.approx({uid(1): 0, uid(2): 0, uid(3): 10, uid(4): 10})


def test_what_only_one_engine_holds_waits_for_it() -> None:
    small, large = engine([waiting(2)], blocks=20), engine([waiting(1, 60), waiting(2)], blocks=60)
    found = play(large, small)
    assert found.starts == {uid(1): 0, uid(2): 0}


def test_behind_the_horizon_the_rate_goes_on() -> None:
    queue = [waiting(n) for n in range(1, 101)]
    near, far = engine(queue, slots=1), play(engine(queue, slots=1), horizon=20)
    ahead = sum(near.cost_s(RemainingTokens(0, 100)) for _ in range(90))
    assert len(far.starts) == 20
    assert later_s(far, cost_ahead_s=ahead) == pytest.approx(900, rel=0.1)
    assert later_s(far, cost_ahead_s=0) == max(far.starts.values())
    assert later_s(play(engine([])), cost_ahead_s=1) is None


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 3000), st.integers(1, 300)), max_size=40),
    held=st.lists(st.integers(1, 30), max_size=3),
    num_engines=st.integers(1, 3),
)
def test_every_job_that_an_engine_holds_starts_in_time_order(
    sizes: list[tuple[int, int, int]], held: list[int], num_engines: int
) -> None:
    queue = [waiting(n, blocks, tokens) for n, (blocks, _, tokens) in enumerate(sizes, 1)]
    lengths = {uid(n): RemainingTokens(prompt, tokens) for n, (_, prompt, tokens) in enumerate(sizes, 1)}
    engines = []
    for number in range(num_engines):
        running = [Reserved(uid(1000 + 10 * number + n), blocks, 50) for n, blocks in enumerate(held)]
        engines.append(engine(queue, running))
        lengths |= {each.job_id: RemainingTokens(100, 50) for each in running}
    found = forecast(engines, lengths, policy=RULES, horizon=1000)
    assert found.starts.keys() == {each.job_id for each in queue}
    times = list(found.starts.values())
    assert times == sorted(times)
    assert all(at >= 0 for at in times)


def test_expected_outputs_are_those_of_peers_who_got_as_far() -> None:
    peers = sorted([100] * 10 + [1000] * 10)
    assert expected_tokens(peers, produced=0, max_tokens=4096, cold_tokens=2048) == 550
    assert expected_tokens(peers, produced=200, max_tokens=4096, cold_tokens=2048) == 800
    assert expected_tokens(peers, produced=0, max_tokens=200, cold_tokens=2048) == 150
    assert expected_tokens([], produced=0, max_tokens=500, cold_tokens=2048) == 250
    assert expected_tokens([], produced=499, max_tokens=500, cold_tokens=2048) == 1


def test_speeds_are_measured_without_what_others_read() -> None:
    speed = Speed(step_s=0.05, read_s=0.001)
    first_read, second_read = speed.reading_s(1000), speed.reading_s(4000)
    timings = [
        JobTiming(0, first_read, first_read + second_read + 0.05 * 99, 1000, 100),
        JobTiming(first_read, first_read + second_read, first_read + second_read + 0.05 * 49, 4000, 50),
    ]
    found = measure(timings, otherwise=SPEED)
    assert found.step_s == pytest.approx(0.05, rel=0.01)
    assert found.read_s == pytest.approx(0.001, rel=0.01)


def test_prompts_that_are_read_together_are_not_counted_as_slow() -> None:
    both = 2 * reading_work(5000) * 0.001
    timings = [JobTiming(0, both, both + 5, 5000, 101)] * 2
    assert measure(timings, otherwise=SPEED).read_s == pytest.approx(0.001)


@pytest.mark.parametrize("timings", [[], [JobTiming(0, None, 5, 1000, 0)], [JobTiming(3, 3, 3, 0, 1)]])
def test_without_measurements_the_default_holds(timings: list[JobTiming]) -> None:
    assert measure(timings, otherwise=SPEED) == SPEED


@pytest.fixture(scope="module")
def predictor() -> StartPredictor:
    return predict_starts(make("MIX-20", seed=0, num_jobs=300, max_tokens=2048), MODEL)


def test_half_of_the_estimates_on_a_mixed_queue_are_within_a_quarter(predictor: StartPredictor) -> None:
    errors = [abs(each.error) for each in predictor.predicted]
    sys.stdout.write(f"MIX-20, {len(errors)} estimates: median relative error {median(errors):.3f}\n")
    assert median(errors) < 0.25


def test_measured_speeds_are_those_of_the_simulated_engine(predictor: StartPredictor) -> None:
    read_s = median(each.read_s for each in predictor.speeds)
    step_s = median(each.step_s for each in predictor.speeds)
    assert read_s == pytest.approx(MODEL.prefill_s, rel=0.15)
    assert MODEL.weights_s < step_s < MODEL.weights_s + MODEL.kv_s * 131_072
