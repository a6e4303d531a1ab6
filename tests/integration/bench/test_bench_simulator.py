from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulation import policies as known
from bench.simulation.engine_model import A6000, CAPACITY, H200, chunk_pairs
from bench.simulation.lower_bound import kv_reads, least_iterations, lower_bound_s, num_steps
from bench.simulation.policies import policies
from bench.simulation.simulator import Conditions, Outcome, simulate
from bench.simulation.workloads import WORKLOADS, Spec, bursty, make, poisson
from bench.targets import two_tenants

SMALL = replace(
    A6000,
    chunk=64,
    capacity=replace(CAPACITY, max_blocks=40, tokens_per_block=16, max_input_len=400, max_seq_len=640),
)
# A full chunk at the end of a full pool.
LONGEST_ITERATION_S = (
    SMALL.weights_s + 640 * SMALL.kv_s + 64 * SMALL.prefill_s + chunk_pairs(64, cached=576) * SMALL.pair_s
)
specs = st.lists(
    st.builds(
        Spec,
        prompt_tokens=st.integers(1, 400),
        output_tokens=st.integers(1, 200),
        max_tokens=st.integers(200, 240),
        template=st.sampled_from("xy"),
        tenant=st.sampled_from(["one", "two"]),
        arrives_at=st.floats(0, 20),
    ),
    min_size=1,
    max_size=40,
)
named = st.sampled_from(sorted(policies()))


def total_tokens(outcome: Outcome) -> int:
    return sum(job.produced for job in outcome.jobs)


@given(jobs=specs, name=named, reuses_prefix=st.booleans())
def test_every_job_ends_and_no_policy_beats_the_lower_bound(
    *, jobs: list[Spec], name: str, reuses_prefix: bool
) -> None:
    conditions = Conditions(SMALL, gap_s=0, reuses_prefix=reuses_prefix)
    outcome = simulate(jobs, policies(reuses_prefix=reuses_prefix)[name], conditions)
    assert total_tokens(outcome) == sum(job.output_tokens for job in jobs)
    assert outcome.makespan_s >= lower_bound_s(SMALL, jobs) * (1 - 1e-9)
    assert outcome.iterations >= least_iterations(SMALL, jobs) - 1e-6
    assert all(wait >= 0 for wait in outcome.waits_s)


# The seeds of three in which some policy comes closest to the bound, to 0.02 % (TINY) or 1 % (MOON): what
# raises the bound beyond any policy in one of the others does so here.
TIGHTEST = {
    "MIX-20": [2],
    "MIX-40": [2],
    "MOON": [0],
    "REASON": [0, 2],
    "SMALL": [1],
    "STARVE": [2],
    "TINY": [0],
}


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
@pytest.mark.parametrize("max_tokens", [2048, 32_768])
def test_no_policy_beats_the_lower_bound_on_any_workload(workload: str, max_tokens: int) -> None:
    for seed in TIGHTEST[workload]:
        together = make(workload, seed=seed, num_jobs=40, max_tokens=max_tokens)
        for model in (A6000, H200):
            bound = lower_bound_s(model, together)
            gap = bound / len(together) / 0.9
            late, burst = (how(together, seed=seed, mean_gap_s=gap) for how in (poisson, bursty))
            ours = policies()[known.LONGBATCH]
            # Who arrives later makes no policy faster: of arrivals, ours is enough.
            runs = [*((policy, together) for policy in policies().values()), (ours, late), (ours, burst)]
            for policy, jobs in runs:
                outcome = simulate(jobs, policy, Conditions(model, gap_s=0))
                assert outcome.makespan_s >= bound * (1 - 1e-9)


class Underestimates:
    """Reserves far too little, always, so that every job goes on again and again."""

    def __call__(self, world, job):  # noqa: ANN001, ANN204  # as policies.Sizing
        return known.book_max(world, job) if job.num_yields else known.book_tokens(world, job, 3)


@given(jobs=specs, reuses_prefix=st.booleans())
def test_segments_never_lock_up_nor_exceed_the_engine(*, jobs: list[Spec], reuses_prefix: bool) -> None:
    policy = known.Packed(Underestimates())
    outcome = simulate(jobs, policy, Conditions(SMALL, reuses_prefix=reuses_prefix))
    assert total_tokens(outcome) == sum(job.output_tokens for job in jobs)
    assert outcome.most_slots <= SMALL.capacity.max_batch_size
    assert outcome.most_blocks <= SMALL.capacity.max_blocks
    assert outcome.longest_queueing_s <= LONGEST_ITERATION_S
    assert max(job.num_yields for job in outcome.jobs) <= 1


@given(specs, st.sampled_from([known.LONGBATCH, known.ORACLE, known.EASY, known.FIRST_FIT]))
def test_a_request_with_a_reservation_never_queues_inside_the_engine(jobs: list[Spec], name: str) -> None:
    outcome = simulate(jobs, policies()[name], Conditions(SMALL))
    assert outcome.longest_queueing_s <= LONGEST_ITERATION_S
    assert outcome.most_slots <= SMALL.capacity.max_batch_size
    assert outcome.most_blocks <= SMALL.capacity.max_blocks


def reached(name: str, jobs: list[Spec]) -> float:
    return lower_bound_s(A6000, jobs) / simulate(jobs, policies()[name], Conditions(A6000)).makespan_s


@pytest.mark.parametrize("workload", ["MIX-20", "MIX-40"])
@pytest.mark.parametrize("max_tokens", [2048, 32_768])
def test_long_and_short_prompts_together_keep_the_engine_full(workload: str, max_tokens: int) -> None:
    jobs = make(workload, seed=0, num_jobs=300, max_tokens=max_tokens)
    ours, plain_pool = reached(known.LONGBATCH, jobs), reached(known.FCFS, jobs)
    assert ours >= 0.96
    assert ours >= plain_pool * (1.06 if max_tokens == 2048 else 1.25)


def test_answers_of_unknown_length_are_overcommitted_without_reading_again() -> None:
    jobs = make("REASON", seed=0, num_jobs=150, max_tokens=32_768)
    ours = simulate(jobs, policies()[known.LONGBATCH], Conditions(A6000))
    full = simulate(jobs, policies()[known.FIRST_FIT], Conditions(A6000))
    oracle = simulate(jobs, policies()[known.ORACLE], Conditions(A6000))
    assert full.makespan_s >= 1.25 * ours.makespan_s
    assert oracle.makespan_s >= 0.95 * ours.makespan_s
    assert ours.recomputed_share <= 0.02


def test_large_jobs_wait_no_longer_than_in_order_of_arrival() -> None:
    together = make("STARVE", seed=0, num_jobs=300, max_tokens=2048)
    gap = lower_bound_s(A6000, together) / 300 / 0.9
    jobs = poisson(together, seed=0, mean_gap_s=gap)
    ours, fcfs, unfair = (
        simulate(jobs, policies()[name], Conditions(A6000))
        for name in (known.LONGBATCH, known.FCFS, known.UNFAIR)
    )
    assert max(ours.waits_s) <= 1.1 * max(fcfs.waits_s) < max(unfair.waits_s)
    assert ours.makespan_s <= 1.01 * unfair.makespan_s


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_two_tenants_with_a_backlog_of_ten_to_one_get_their_weights(weight: float) -> None:
    conditions = Conditions(A6000, weights={"small": weight})
    outcome = simulate(two_tenants(seed=0, num_jobs=300), policies()[known.LONGBATCH], conditions)
    served = outcome.shares["small"]
    assert served["small"] / served.total() == pytest.approx(weight / (weight + 1), rel=0.1)


def test_a_tenant_that_was_idle_gets_no_more_than_its_share() -> None:
    early = make("TINY", seed=0, num_jobs=200, max_tokens=2048)
    late = [replace(spec, tenant="late", arrives_at=60.0) for spec in early[:40]]
    outcome = simulate([*early, *late], policies()[known.LONGBATCH], Conditions(A6000))
    during = [job for job in outcome.jobs if job.started_at is not None and job.started_at > 60]
    until = max(job.started_at or 0 for job in outcome.jobs if job.spec.tenant == "late")
    mine = [job.spec.tenant == "late" for job in during if (job.started_at or 0) <= until]
    assert sum(mine) / len(mine) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_workload_is_the_same_for_the_same_seed_and_within_its_limits(name: str) -> None:
    jobs = make(name, seed=7, num_jobs=300, max_tokens=2048)
    assert jobs == make(name, seed=7, num_jobs=300, max_tokens=2048)
    assert name == "TINY" or jobs != make(name, seed=8, num_jobs=300, max_tokens=2048)
    for job in jobs:
        assert 1 <= job.prompt_tokens <= 96_000
        assert 1 <= job.output_tokens <= job.max_tokens


def test_one_prompt_in_five_and_two_in_five_are_long() -> None:
    for name, share in (("MIX-20", 0.2), ("MIX-40", 0.4)):
        jobs = make(name, seed=0, num_jobs=2000, max_tokens=2048)
        assert sum(job.template == "long" for job in jobs) / 2000 == pytest.approx(share, abs=0.03)


def test_arrivals_come_at_the_average_rate() -> None:
    jobs = make("TINY", seed=0, num_jobs=2000, max_tokens=2048)
    for how in (poisson, bursty):
        last = how(jobs, seed=0, mean_gap_s=3.0)[-1].arrives_at
        assert last == pytest.approx(6000, rel=0.25)


def test_the_lower_bound_counts_the_chunks_and_tokens_of_one_job() -> None:
    spec = Spec(prompt_tokens=8193, output_tokens=3, max_tokens=9, template="x")
    assert num_steps(spec, 8192) == 4
    assert kv_reads(spec, 8192) == 1 + 8193 + 8194 + 8195
    alone = simulate([spec], policies()[known.ONE_AT_A_TIME], Conditions(A6000, gap_s=0))
    assert alone.iterations == 4
    assert alone.makespan_s == pytest.approx(lower_bound_s(A6000, [spec]), rel=0.01)
