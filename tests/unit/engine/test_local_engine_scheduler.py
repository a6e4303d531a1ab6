"""The scheduler of the local engine keeps TensorRT-LLM's rules, whatever arrives and leaves."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine import engine_module

scheduler = engine_module("scheduler")
CAPACITY = scheduler.Capacity(
    max_batch_size=4, max_blocks=100, tokens_per_block=8, max_num_tokens=64, max_seq_len=700
)


def sequence(prompt: int, output: int) -> Any:  # noqa: ANN401  # of a file loaded by path
    return scheduler.Sequence(prompt_tokens=prompt, max_tokens=output)


actions = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 699), st.integers(1, 900)),
    st.tuples(st.just("iterate"), st.integers(1, 12), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("stall"), st.integers(0, 30), st.just(0)),
)


@given(st.lists(actions, max_size=60))
def test_slots_blocks_tokens_and_order_hold_in_any_history(history: list[tuple[str, int, int]]) -> None:
    engine = scheduler.Scheduler(CAPACITY)
    arrived: list[Any] = []
    started: list[Any] = []
    for verb, number, output in history:
        inside = [*engine.active, *engine.waiting]
        if verb == "add":
            arrived.append(sequence(number, output))
            engine.add(arrived[-1])
        elif verb == "remove" and inside:
            gone = inside[number % len(inside)]
            engine.remove(gone)
            arrived.remove(gone)
            started = [each for each in started if each is not gone]
        elif verb == "stall" and engine.active:
            chosen = engine.active[number % len(engine.active)]
            chosen.is_stalled = not chosen.is_stalled
        else:
            for _ in range(number):
                iterate(engine, arrived, started)
        assert_within_limits(engine)


def iterate(engine: Any, arrived: list[Any], started: list[Any]) -> None:  # noqa: ANN401  # of a file loaded by path
    engine.admit()
    started += [each for each in engine.active if each not in started]
    # First in, first started: nobody overtakes, not even one that would fit.
    assert started == arrived[: len(started)]
    head = engine.waiting[0] if engine.waiting else None
    if head is not None and len(engine.active) < CAPACITY.max_batch_size:
        assert engine.reserved_blocks + engine.reservation(head) > CAPACITY.max_blocks
    step = engine.next_iteration()
    if step is None:
        assert all(each.is_stalled for each in engine.active)
        return
    prefilled = [each for each in step.chunks if each.num_prefilled + step.chunks[each] < each.prompt_tokens]
    assert 0 < step.prefill_tokens + len(step.yielding) <= CAPACITY.max_num_tokens + len(step.chunks)
    assert not set(prefilled) & set(step.yielding)
    engine.advance(step)
    for each in [each for each in step.yielding if each.num_generated == each.max_tokens]:
        engine.remove(each)
        arrived.remove(each)
        started.remove(each)


def assert_within_limits(engine: Any) -> None:  # noqa: ANN401  # of a file loaded by path
    assert len(engine.active) <= CAPACITY.max_batch_size
    assert engine.used_blocks <= engine.reserved_blocks <= CAPACITY.max_blocks
    for each in engine.active:
        assert each.num_prefilled <= each.prompt_tokens
        assert each.num_generated < each.max_tokens
        assert each.prompt_tokens + each.max_tokens <= CAPACITY.longest_sequence


def test_a_request_takes_one_iteration_a_chunk_and_one_a_token_after_the_first() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    engine.add(one := sequence(150, 10))
    engine.admit()
    iterations = 0
    while one.num_generated < 10:
        engine.advance(engine.next_iteration())
        iterations += 1
    assert iterations == 3 + 10 - 1


def test_generating_sequences_go_on_while_a_prompt_is_read() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    engine.add(quick := sequence(8, 50))
    engine.admit()
    engine.advance(engine.next_iteration())
    engine.add(long := sequence(200, 10))
    engine.admit()
    step = engine.next_iteration()
    assert step.yielding == [quick]
    assert step.chunks == {long: CAPACITY.max_num_tokens - 1}


def test_the_pool_shortens_sequences_as_the_model_does() -> None:
    small = scheduler.Capacity(
        max_batch_size=1, max_blocks=10, tokens_per_block=8, max_num_tokens=64, max_seq_len=700
    )
    engine = scheduler.Scheduler(small)
    engine.add(one := sequence(50, 500))
    assert one.max_tokens == 30
    with pytest.raises(ValueError, match="no room"):
        engine.add(sequence(80, 1))


def test_an_iteration_costs_what_the_roofline_says() -> None:
    cost = scheduler.Roofline(iteration=1.0, kv_token=0.1, prefill_token=0.01, attention_pair=0.001)
    engine = scheduler.Scheduler(CAPACITY)
    engine.add(sequence(100, 5))
    engine.admit()
    first = engine.next_iteration()
    assert cost.seconds(first) == pytest.approx(1 + 0.64 + 0.001 * 64 * 65 / 2)
    engine.advance(first)
    second = engine.next_iteration()
    assert cost.seconds(second) == pytest.approx(1 + 6.4 + 0.36 + 0.001 * (36 * 64 + 36 * 37 / 2))
    engine.advance(second)
    assert cost.seconds(engine.next_iteration()) == pytest.approx(1 + 10.1)
