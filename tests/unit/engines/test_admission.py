from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jobs.engines.capacity import Capacity, ReservedBlocks, blocks_for, find_excess, free_budget
from support import CAPACITY

held_lists = st.lists(st.builds(ReservedBlocks, blocks=st.integers(1, 2048), alone=st.booleans()), max_size=6)


@given(held_lists, st.none() | st.integers(-10, 3000))
def test_a_budget_never_exceeds_what_reservations_and_gauge_leave(
    held: list[ReservedBlocks], spare_blocks: int | None
) -> None:
    budget = free_budget(CAPACITY, held, spare_blocks=spare_blocks)
    assert 0 <= budget.free_slots <= max(0, CAPACITY.max_batch_size - len(held))
    assert 0 <= budget.free_blocks <= max(0, CAPACITY.max_blocks - sum(each.blocks for each in held))
    assert spare_blocks is None or budget.free_blocks <= max(0, spare_blocks)
    assert budget.idle == (not held)


@given(held_lists)
def test_nothing_starts_beside_a_job_that_must_run_alone(held: list[ReservedBlocks]) -> None:
    if any(each.alone for each in held):
        assert free_budget(CAPACITY, held).free_slots == 0


@given(st.integers(0, 200_000), st.sampled_from([16, 32, 64, 128]))
def test_blocks_hold_their_tokens_with_less_than_one_block_to_spare(tokens: int, size: int) -> None:
    blocks = blocks_for(tokens, size)
    assert blocks * size >= tokens
    assert (blocks - 1) * size < tokens


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


@given(st.integers(0, 200_000), st.integers(0, 500))
def test_a_sequence_s_constant_is_reserved_on_top_of_its_text(tokens: int, constant: int) -> None:
    windowed = replace(CAPACITY, blocks_per_sequence=constant)
    blocks = windowed.blocks_of(tokens)
    assert blocks == CAPACITY.blocks_of(tokens) + constant
    assert tokens <= windowed.tokens_in(blocks) < tokens + 64


def test_what_a_constant_leaves_of_pool_and_share_limits_a_job() -> None:
    windowed = replace(CAPACITY, blocks_per_sequence=384)
    assert windowed.max_tokens_in_pool == (2048 - 384) * 64
    assert windowed.max_tokens_in_share == (512 - 384) * 64
    assert find_excess(windowed, prompt_tokens=90_000, max_tokens=16_496) is None
    pool = find_excess(windowed, prompt_tokens=90_000, max_tokens=16_497)
    assert pool is not None
    assert (pool.limit_name, pool.limit) == ("kv_cache_tokens", 106_496)
    nothing = replace(CAPACITY, blocks_per_sequence=4096)
    assert (nothing.max_tokens_in_pool, nothing.max_tokens_in_share) == (0, 0)
