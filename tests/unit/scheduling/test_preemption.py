from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.engines.capacity import Budget, Capacity, ReservedBlocks, free_budget
from jobs.scheduling.packing import Candidate, PackingPolicy, Reserved, fits
from jobs.scheduling.preemption import choose_preemptions
from jobs.states import Lane

CAPACITY = Capacity(
    max_batch_size=4, max_blocks=100, tokens_per_block=64, max_input_len=6000, max_seq_len=6400
)
RULES = PackingPolicy()
SOMEBODY = Candidate(UUID(int=99), blocks=10, steps=10, lane=Lane.INTERACTIVE)


def batch_job(
    number: int, *, blocks: int = 20, recompute: int = 1000, new: int = 1000, **more: object
) -> Reserved:
    return Reserved(
        UUID(int=number),
        blocks,
        steps_left=500,
        recompute_tokens=recompute,
        new_tokens=new,
        **more,  # type: ignore[arg-type]  # named by the caller
    )


def budget_beside(running: Sequence[Reserved]) -> Budget:
    return free_budget(CAPACITY, [ReservedBlocks(each.blocks) for each in running])


def room_for(
    waiting: Candidate,
    running: Sequence[Reserved],
    *,
    batch_waits: bool = True,
    policy: PackingPolicy = RULES,
) -> list[int]:
    left = choose_preemptions(
        waiting, running, budget_beside(running), max_batch_size=4, policy=policy, batch_waits=batch_waits
    )
    return [each.int for each in left]


def test_the_job_that_is_cheapest_to_read_again_makes_room() -> None:
    running = [batch_job(number, recompute=tokens) for number, tokens in enumerate([9000, 300, 40, 7000])]
    assert room_for(SOMEBODY, running) == [2]


def test_a_job_that_may_not_yield_again_counts_with_its_whole_prompt() -> None:
    running = [
        batch_job(0, recompute=9000),
        Reserved(UUID(int=1), 20, 500, recompute_tokens=None, new_tokens=1000, prompt_tokens=9500),
        batch_job(2, recompute=9200),
        batch_job(3, recompute=9300),
    ]
    assert room_for(SOMEBODY, running) == [0]


def test_nobody_leaves_while_there_is_room_or_somebody_is_leaving_already() -> None:
    assert room_for(SOMEBODY, [batch_job(number) for number in range(3)]) == []
    running = [batch_job(number) for number in range(3)] + [batch_job(3, is_leaving=True)]
    assert room_for(SOMEBODY, running) == []


def test_a_job_is_left_alone_before_it_earned_its_prompt_and_after_two_times() -> None:
    young = [batch_job(number, new=RULES.preempt_after - 1) for number in range(4)]
    assert room_for(SOMEBODY, young) == []
    immune = [batch_job(number, num_preemptions=RULES.max_preemptions) for number in range(4)]
    assert room_for(SOMEBODY, immune) == []
    assert room_for(SOMEBODY, [*immune[:3], batch_job(3)]) == [3]


def test_interactive_jobs_never_make_room_and_never_take_the_last_slot_from_waiting_batch_jobs() -> None:
    talking = [batch_job(number, lane=Lane.INTERACTIVE) for number in range(3)]
    running = [*talking, batch_job(3)]
    assert room_for(SOMEBODY, running) == []
    assert room_for(SOMEBODY, running, batch_waits=False) == [3]


def test_several_leave_when_one_is_too_small_and_only_those_that_are_needed() -> None:
    large = replace(SOMEBODY, blocks=55)
    running = [
        batch_job(0, blocks=5, recompute=10),
        batch_job(1, blocks=40, recompute=20),
        batch_job(2, blocks=50, recompute=30),
    ]
    assert room_for(large, running) == [2]  # 5 are free; 0 and 1 would leave 50


def test_nobody_leaves_in_vain() -> None:
    running = [batch_job(0, blocks=50, num_preemptions=2), batch_job(1, blocks=30), batch_job(2, blocks=10)]
    assert room_for(replace(SOMEBODY, blocks=60), running) == []


some_jobs = st.lists(
    st.builds(
        Reserved,
        job_id=st.uuids(version=4),
        blocks=st.integers(1, 40),
        steps_left=st.just(5),
        lane=st.sampled_from(Lane),
        recompute_tokens=st.integers(1, 9000),
        new_tokens=st.integers(0, 600),
        num_preemptions=st.integers(0, 2),
        is_leaving=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda each: each.job_id,
)


@given(drawn=some_jobs, blocks=st.integers(1, 100), batch_waits=st.booleans())
def test_when_they_have_left_it_fits_and_without_any_of_them_it_would_not(
    *, drawn: list[Reserved], blocks: int, batch_waits: bool
) -> None:
    running: list[Reserved] = []
    for each in drawn:
        if sum(other.blocks for other in running) + each.blocks <= CAPACITY.max_blocks:
            running.append(each)
    waiting = replace(SOMEBODY, blocks=blocks)
    left = choose_preemptions(
        waiting, running, budget_beside(running), max_batch_size=4, policy=RULES, batch_waits=batch_waits
    )
    if not left:
        return
    staying = [each for each in running if each.job_id not in left and not each.is_leaving]
    assert fits(waiting, budget_beside(staying))
    for missed in left:
        kept = [each for each in running if each.job_id == missed]
        assert not fits(waiting, budget_beside([*staying, *kept]))
