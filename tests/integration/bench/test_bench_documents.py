"""Jobs that share documents, simulated: read once, fairly, without starvation, within the pool."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulation import policies as known
from bench.simulation.engine_model import A6000, CAPACITY
from bench.simulation.policies import IntoTheEngine, policies
from bench.simulation.prefix_cache import PrefixCache, Reader, referenced
from bench.simulation.replayed_documents import Replayed
from bench.simulation.shared_documents import SharedPacked, ask, asker_and_other, least_prefill, limit_s
from bench.simulation.simulator import Conditions, simulate
from bench.simulation.workloads import Spec, make

SMALL = replace(
    A6000,
    chunk=64,
    capacity=replace(CAPACITY, max_blocks=40, tokens_per_block=16, max_input_len=400, max_seq_len=640),
)
SHARING = Conditions(A6000, shares_documents=True, credits_reuse=True)
DOCUMENTS = (0, 40, 160, 350)  # tokens


@st.composite
def questions(draw: st.DrawFn) -> Spec:
    number = draw(st.integers(0, 3))
    length = DOCUMENTS[number]
    return Spec(
        prompt_tokens=length + draw(st.integers(1, 40)),
        output_tokens=draw(st.integers(1, 150)),
        max_tokens=150,
        template="x",
        tenant=draw(st.sampled_from(["one", "two"])),
        arrives_at=draw(st.floats(0, 20)),
        document=number if length else None,
        shared_tokens=length,
    )


@given(
    st.lists(questions(), min_size=1, max_size=40),
    st.booleans(),
    st.sampled_from([SharedPacked(), IntoTheEngine()]),
)
def test_every_job_ends_within_the_pool_and_no_policy_beats_the_limit(
    jobs: list[Spec],
    credits_reuse: bool,  # noqa: FBT001  # given by position
    policy: known.Policy,
) -> None:
    outcome = simulate(jobs, policy, Conditions(SMALL, shares_documents=True, credits_reuse=credits_reuse))
    assert [job.produced for job in outcome.jobs] == [job.output_tokens for job in jobs]
    assert max(each.booked_blocks for each in outcome.occupancy) <= SMALL.capacity.max_blocks
    assert max(each.slots for each in outcome.occupancy) <= SMALL.capacity.max_batch_size
    # A document that is not of whole blocks ends in one that each job computes for itself.
    assert outcome.prefilled_tokens >= least_prefill(jobs)
    assert outcome.makespan_s >= limit_s(SMALL, jobs) * (1 - 1e-9)


@pytest.mark.parametrize("seed", [0, 5])
def test_a_document_is_read_once_for_all_its_questions_and_slots_stay_full(seed: int) -> None:
    jobs = ask(seed=seed)
    ours = simulate(jobs, SharedPacked(), SHARING)
    in_order = simulate(jobs, policies()[known.FCFS], SHARING)
    assert limit_s(A6000, jobs) / ours.makespan_s >= 0.95
    assert ours.prefilled_tokens / least_prefill(jobs) <= 1.03
    assert in_order.makespan_s / ours.makespan_s >= 4


def test_questions_that_came_within_a_tenth_of_their_wait_are_answered_document_by_document() -> None:
    jobs = [replace(each, arrives_at=-400 + place // 16 * 5) for place, each in enumerate(ask(seed=0))]
    ours = simulate(jobs, SharedPacked(), SHARING)
    assert ours.prefilled_tokens / least_prefill(jobs) <= 1.03, "1.67 if a cohort counted as postponed"


class ForgetfulCache(PrefixCache):
    """The cache of transformers' continuous batching: with too little room, all that is free goes at once."""

    def drop(self, active: Sequence[Reader], room: int) -> None:
        held = referenced(active)
        if sum(self.blocks.values()) - sum(held.values()) > room:
            self.blocks = {
                each: min(blocks, held[each]) for each, blocks in self.blocks.items() if each in held
            }


class CrowdedCache(PrefixCache):
    """Another client has three quarters of the pool, which nobody told the worker."""

    def drop(self, active: Sequence[Reader], room: int) -> None:
        super().drop(active, room - CAPACITY.max_blocks * 3 // 4)


@pytest.mark.parametrize(
    ("cache", "tail", "bound"),
    [
        (PrefixCache, 0, 1.0),
        (PrefixCache, 500, 1.0),
        (ForgetfulCache, 500, 1.0),
        (CrowdedCache, 0, 1.15),
        (CrowdedCache, 500, 1.3),
    ],
)
def test_a_list_asked_twice_costs_little_more_than_document_by_document(
    cache: type[PrefixCache], tail: int, bound: float
) -> None:
    chance = random.Random(7)  # noqa: S311  # the same lengths each time
    asked = ask(seed=7, document_tokens=30_000, num_documents=12, num_questions=6)
    jobs = [
        replace(each, output_tokens=32, prompt_tokens=each.prompt_tokens + chance.randint(0, tail))
        for each in asked
    ]
    conditions = Conditions(A6000, shares_documents=True, cache=cache)
    once = simulate(jobs, Replayed(), conditions)
    again = [replace(each, arrives_at=once.makespan_s + 1) for each in jobs]
    both = simulate([*jobs, *again], Replayed(), conditions)
    by_document = sorted(jobs, key=lambda each: each.document or 0)
    offline = simulate(by_document, policies()[known.FCFS], conditions)
    assert once.prefilled_tokens <= 1.03 * bound * least_prefill(jobs)
    assert both.prefilled_tokens <= 2.1 * bound * least_prefill(jobs)
    assert both.makespan_s <= 2 * bound * offline.makespan_s


def test_without_documents_nothing_changes() -> None:
    jobs = make("MIX-20", seed=0, num_jobs=60, max_tokens=2048)
    now, then = (simulate(jobs, policy, SHARING) for policy in (SharedPacked(), policies()[known.LONGBATCH]))
    assert now.waits_s == then.waits_s


def test_tenants_share_computed_tokens_although_one_shares_documents() -> None:
    jobs = asker_and_other(seed=0)
    ours = simulate(jobs, SharedPacked(), SHARING)
    served = ours.shares["asker"]
    assert served["asker"] / served.total() == pytest.approx(0.5, rel=0.1)
    assert max(ours.waits_s) <= 1.1 * max(simulate(jobs, policies()[known.FCFS], SHARING).waits_s)


def test_an_endless_stream_of_questions_about_one_document_starves_nobody() -> None:
    (question,) = ask(seed=0, num_documents=1, num_questions=1)
    stream = [replace(question, arrives_at=2.0 * place) for place in range(150)]  # almost twice what fits
    other = replace(question, document=1, arrives_at=100.0)
    jobs = [*stream, other]
    ours, in_order = (simulate(jobs, policy, SHARING) for policy in (SharedPacked(), policies()[known.FCFS]))
    once_s = 25  # to read the document
    assert ours.waits_s[-1] <= 1.2 * in_order.waits_s[-1] + 2 * once_s < 0.5 * ours.makespan_s
