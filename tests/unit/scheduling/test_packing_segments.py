from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.engines.capacity import Budget
from jobs.scheduling.packing import Candidate, Reserved, shadow_of
from jobs.scheduling.prediction import NEAREST, Peers, PredictionPolicy, predict
from jobs.scheduling.segments import Growth, extend_or_yield, next_segment, whole_blocks
from jobs.scheduling.sizing import ClaimPolicy, policy_on
from support import CAPACITY

CLAIMING = ClaimPolicy(lease=timedelta(seconds=60), max_rescues=2)
CACHED = PredictionPolicy(reuses_prefix=True)
UNCACHED = PredictionPolicy(reuses_prefix=False)
# Outputs of 200 peers, from 50 to 10,000 tokens.
PEERS = [50 * (place + 1) for place in range(200)]

outputs = st.lists(st.integers(1, 32_768), max_size=60).map(sorted)
others_on_the_engine = st.lists(
    st.builds(
        Reserved,
        job_id=st.uuids(version=4),
        blocks=st.integers(1, 60),
        steps_left=st.integers(0, 50),
        recompute_tokens=st.none() | st.integers(1, 90_000),
        is_going=st.booleans(),
    ),
    max_size=3,
)


@given(
    outputs, st.integers(1, 96_000), st.integers(1, 32_768), st.data(), st.sampled_from([CACHED, UNCACHED])
)
def test_a_segment_reserves_just_the_blocks_of_its_tokens(
    peers: list[int], prompt_tokens: int, max_tokens: int, data: st.DataObject, policy: PredictionPolicy
) -> None:
    produced = data.draw(st.integers(0, max_tokens - 1))
    segment = next_segment(
        CAPACITY, peers, prompt_tokens=prompt_tokens, produced=produced, max_tokens=max_tokens, policy=policy
    )
    assert 1 <= segment.new_tokens <= max_tokens - produced
    reserved, asked = segment.blocks * 64, prompt_tokens + produced + segment.new_tokens
    assert asked <= reserved < asked + 64


@given(outputs, st.integers(1, 60_000), st.integers(1, 32_768), st.integers(0, 400))
def test_a_segment_fills_its_blocks_beside_the_constant_of_its_sequence(
    peers: list[int], prompt_tokens: int, max_tokens: int, constant: int
) -> None:
    windowed = replace(CAPACITY, blocks_per_sequence=constant)
    segment = next_segment(
        windowed, peers, prompt_tokens=prompt_tokens, produced=0, max_tokens=max_tokens, policy=CACHED
    )
    assert 1 <= segment.new_tokens <= max_tokens
    reserved, asked = (segment.blocks - constant) * 64, prompt_tokens + segment.new_tokens
    assert asked <= reserved < asked + 64


def test_a_cold_start_reserves_2048_and_then_doubles() -> None:
    asked: dict[str, Any] = {"prompt_tokens": 1000, "policy": CACHED}
    assert predict(CAPACITY, [], produced=0, **asked) == 2048
    assert predict(CAPACITY, [], produced=8192, **asked) == 16_384
    assert whole_blocks(CAPACITY, held_tokens=1000, new_tokens=2048, left=100).new_tokens == 100


def test_a_job_within_its_slots_share_reserves_nearly_all_that_peers_needed() -> None:
    assert predict(CAPACITY, PEERS, prompt_tokens=4000, produced=0, policy=CACHED) >= 9900


def test_a_long_answer_beyond_its_share_reserves_much_less() -> None:
    assert predict(CAPACITY, PEERS, prompt_tokens=30_000, produced=0, policy=CACHED) <= 7000


def test_many_slots_reserve_what_most_peers_needed_and_keep_full() -> None:
    # vLLM as it starts on one H100: a slot's share of the pool is 452 tokens.
    many = replace(CAPACITY, max_batch_size=1024, max_blocks=28_933, tokens_per_block=16)
    outputs = sorted(100 + 10 * place for place in range(NEAREST))  # 100 to 730 tokens
    reserved = predict(many, outputs, prompt_tokens=200, produced=0, policy=CACHED)
    assert 300 <= reserved <= 600


def test_a_job_reserves_what_its_slots_share_holds_however_short_the_first_answers_were() -> None:
    # vLLM as it starts on one H200: 49 blocks for each of 1,152 requests.
    many = replace(CAPACITY, max_batch_size=1024, waiting_room=128, max_blocks=57_488, tokens_per_block=16)
    assert predict(many, [40] * NEAREST, prompt_tokens=200, produced=0, policy=CACHED) == 49 * 16 - 200
    assert predict(many, [40] * NEAREST, prompt_tokens=2000, produced=0, policy=CACHED) == 40


def test_a_cold_start_reserves_less_where_a_slots_share_of_the_pool_is_small() -> None:
    many = replace(CAPACITY, max_batch_size=1024, max_blocks=28_933, tokens_per_block=16)
    assert predict(many, [], prompt_tokens=200, produced=0, policy=CACHED) < 2048


def test_a_scarce_pool_holds_more_jobs_than_reserving_nearly_all_that_peers_needed_would() -> None:
    scarce = replace(CAPACITY, max_batch_size=1024, max_blocks=3274, tokens_per_block=16)
    outputs = sorted(300 + 20 * place for place in range(NEAREST))  # 300 to 1,560 tokens
    assert predict(scarce, outputs, prompt_tokens=1000, produced=0, policy=CACHED) <= 1100


def test_what_is_reserved_rises_with_a_prompt_that_would_be_read_again() -> None:
    reserved = [
        predict(CAPACITY, PEERS, prompt_tokens=prompt, produced=0, policy=UNCACHED)
        for prompt in (34_000, 60_000, 80_000, 96_000)
    ]
    assert reserved == sorted(reserved)
    assert reserved[0] < reserved[-1]


@given(st.integers(0, 9000))
def test_a_prediction_is_conditioned_on_what_was_produced(produced: int) -> None:
    assert predict(CAPACITY, PEERS, prompt_tokens=30_000, produced=produced, policy=CACHED) > produced


@given(others_on_the_engine, st.integers(0, 40), st.integers(1, 80), st.integers(1, 90_000))
def test_a_job_that_must_go_on_grows_waits_or_makes_exactly_one_yield(
    others: list[Reserved], free_blocks: int, wanted_blocks: int, tokens: int
) -> None:
    job = Reserved(UUID(int=1), 10, 0, recompute_tokens=tokens, is_going=False)
    budget = Budget(free_slots=1, free_blocks=free_blocks, idle=False)
    extension = extend_or_yield(job, others, budget, wanted_blocks=wanted_blocks)
    assert extension.blocks == min(wanted_blocks, free_blocks)
    if extension.yields is not None:
        assert not any(each.is_going for each in others)
        costs = {each.job_id: each.recompute_tokens for each in (job, *others)}
        cost = costs[extension.yields]
        assert cost is not None
        assert cost == min(each for each in costs.values() if each is not None)
    elif not extension.blocks:
        assert any(each.is_going for each in others)


def test_when_all_wait_for_blocks_the_cheapest_to_recompute_yields() -> None:
    job, small, settled = (
        Reserved(UUID(int=n), 10, 0, recompute_tokens=tokens, is_going=False)
        for n, tokens in ((1, 9000), (2, 4000), (3, None))
    )
    full = Budget(free_slots=1, free_blocks=0, idle=False)
    assert extend_or_yield(job, [small, settled], full, wanted_blocks=5).yields == small.job_id
    assert extend_or_yield(small, [job, settled], full, wanted_blocks=5).yields == small.job_id
    assert extend_or_yield(job, [settled], full, wanted_blocks=5).yields == job.job_id


@given(others_on_the_engine, st.integers(0, 40), st.integers(1, 80), st.integers(1, 120))
def test_growth_never_postpones_the_job_that_was_overtaken(
    others: list[Reserved], free_blocks: int, wanted_blocks: int, needed: int
) -> None:
    job = Reserved(UUID(int=1), 10, 0, recompute_tokens=500, is_going=False)
    budget = Budget(free_slots=1, free_blocks=free_blocks, idle=False)
    waiting = Candidate(UUID(int=2), blocks=needed, steps=5)
    extension = extend_or_yield(job, others, budget, wanted_blocks=wanted_blocks, overtaken=waiting)
    if extension.blocks:
        left = Budget(1, free_blocks - extension.blocks, idle=False)
        ended = Budget(2, free_blocks + job.blocks, idle=not others)
        assert shadow_of(waiting, others, left).steps <= shadow_of(waiting, others, ended).steps
        assert free_blocks - extension.blocks + sum(each.blocks for each in others) >= needed


def test_an_overtaker_yields_when_its_end_is_waited_for() -> None:
    job = Reserved(UUID(int=1), 10, 0, recompute_tokens=500, is_going=False)
    going = Reserved(UUID(int=3), 80, 40)
    waiting = Candidate(UUID(int=2), blocks=15, steps=5)
    budget = Budget(free_slots=2, free_blocks=10, idle=False)
    extension = extend_or_yield(job, [going], budget, wanted_blocks=5, overtaken=waiting)
    assert extension == Growth(0, yields=job.job_id)


def test_outputs_are_guessed_from_prompts_of_about_the_same_length() -> None:
    tickets = [(200 + number, 20) for number in range(100)]
    books = [(60_000 + 10 * number, 900 + number) for number in range(100)]
    peers = Peers.of([*tickets, *books])
    assert set(peers.near(250)) == {20}
    near_books = peers.near(60_500)
    assert len(near_books) == NEAREST
    assert list(near_books) == sorted(near_books)
    assert min(near_books) >= 900
    assert list(Peers.of([]).near(1000)) == []
    assert list(Peers.of([(10, 5)]).near(90_000)) == [5]


def test_of_prompts_of_one_length_the_newest_count_whatever_they_generated() -> None:
    peers = Peers.of([(4000, 900)] * NEAREST + [(4000, 30)] * NEAREST)
    assert set(peers.near(4000)) == {900}


def test_the_engine_says_whether_it_reuses_prefixes_and_whether_jobs_can_continue() -> None:
    assert policy_on(CLAIMING, can_resume=True, reuses_prefix=True) == CLAIMING
    forgetful = policy_on(CLAIMING, can_resume=True, reuses_prefix=False)
    assert forgetful == replace(CLAIMING, prediction=UNCACHED)
    assert policy_on(forgetful, can_resume=True, reuses_prefix=True) == CLAIMING
    whole = policy_on(CLAIMING, can_resume=False, reuses_prefix=True)
    assert (whole.prediction, whole.preempts) == (None, False)
    reserves_all = replace(CLAIMING, prediction=None)
    assert policy_on(reserves_all, can_resume=True, reuses_prefix=False) == reserves_all
