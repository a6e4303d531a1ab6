from datetime import timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.admission import (
    Budget,
    Candidate,
    Capacity,
    Held,
    blocks_for,
    choose,
    find_excess,
    free_budget,
)

BOUND = timedelta(seconds=60)
CAPACITY = Capacity(
    max_batch_size=4, max_blocks=2048, tokens_per_block=64, max_input_len=96_000, max_seq_len=131_072
)

held_lists = st.lists(st.builds(Held, blocks=st.integers(1, 2048), alone=st.booleans()), max_size=6)
waits = st.none() | st.timedeltas(timedelta(0), timedelta(minutes=5))


@st.composite
def queues(draw: st.DrawFn) -> list[Candidate]:
    sizes = draw(st.lists(st.tuples(st.integers(1, 2048), waits, st.booleans()), max_size=12))
    return [
        Candidate(job_id=UUID(int=place), blocks=blocks, passed_over_for=wait, alone=alone)
        for place, (blocks, wait, alone) in enumerate(sizes)
    ]


@given(queues(), held_lists, st.none() | st.integers(-10, 3000))
def test_admission_never_exceeds_slots_or_blocks(
    queue: list[Candidate], held: list[Held], spare_blocks: int | None
) -> None:
    choice = choose(queue, free_budget(CAPACITY, held, spare_blocks=spare_blocks), max_overtake=BOUND)
    if choice.start is not None:
        blocks = next(each.blocks for each in queue if each.job_id == choice.start)
        assert len(held) + 1 <= CAPACITY.max_batch_size
        assert sum(each.blocks for each in held) + blocks <= CAPACITY.max_blocks
        assert spare_blocks is None or blocks <= spare_blocks


@given(queues(), held_lists)
def test_the_first_that_fits_starts_unless_the_head_was_passed_over_for_too_long(
    queue: list[Candidate], held: list[Held]
) -> None:
    budget = free_budget(CAPACITY, held)
    choice = choose(queue, budget, max_overtake=BOUND)
    fitting = [
        each.job_id
        for each in queue
        if budget.free_slots and each.blocks <= budget.free_blocks and (budget.idle or not each.alone)
    ]
    if not fitting:
        assert choice.start is None
        return
    head = queue[0]
    patience_is_over = head.job_id != fitting[0] and (head.passed_over_for or timedelta(0)) >= BOUND
    assert choice.start == (None if patience_is_over else fitting[0])
    assert choice.passed_over == (head.job_id if choice.start not in (None, head.job_id) else None)


@given(queues(), held_lists)
def test_nothing_starts_beside_a_job_that_must_run_alone(queue: list[Candidate], held: list[Held]) -> None:
    choice = choose(queue, free_budget(CAPACITY, held), max_overtake=BOUND)
    if choice.start is not None:
        started = next(each for each in queue if each.job_id == choice.start)
        assert not any(each.alone for each in held)
        assert not (started.alone and held)


@given(st.integers(0, 200_000), st.sampled_from([16, 32, 64, 128]))
def test_blocks_hold_their_tokens_with_less_than_one_block_to_spare(tokens: int, size: int) -> None:
    blocks = blocks_for(tokens, size)
    assert blocks * size >= tokens
    assert (blocks - 1) * size < tokens


def test_a_head_that_fits_starts_however_long_others_passed_it() -> None:
    head = Candidate(UUID(int=1), blocks=10, passed_over_for=timedelta(hours=1))
    assert choose([head], Budget(1, 10, idle=False), max_overtake=BOUND).start == head.job_id


def test_each_limit_names_itself() -> None:
    assert find_excess(CAPACITY, prompt_tokens=96_000, max_tokens=4096) is None
    too_long = find_excess(CAPACITY, prompt_tokens=96_001, max_tokens=1)
    assert too_long is not None
    assert (too_long.limit_name, too_long.limit) == ("max_input_len", 96_000)
    sequence = find_excess(CAPACITY, prompt_tokens=90_000, max_tokens=41_073)
    assert sequence is not None
    assert (sequence.limit_name, sequence.limit) == ("max_seq_len", 131_072)
    small = Capacity(max_batch_size=4, max_blocks=10, tokens_per_block=64, max_input_len=600, max_seq_len=700)
    pool = find_excess(small, prompt_tokens=600, max_tokens=41)
    assert pool is not None
    assert (pool.limit_name, pool.limit) == ("kv_cache_tokens", 640)
