"""The local engine reuses KV blocks by TensorRT-LLM's rules, and never at the cost of a block in use."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from local_engine import engine_module
from support import PATIENCE

scheduler = engine_module("scheduler")
SIZE = 8
CAPACITY = scheduler.Capacity(
    max_batch_size=4, max_blocks=100, tokens_per_block=SIZE, max_num_tokens=64, max_seq_len=700
)


def document(number: int, num_tokens: int) -> list[int]:
    return [1000 * number + place for place in range(num_tokens)]


def sequence(ids: list[int], output: int) -> Any:  # noqa: ANN401  # of a file loaded by path
    return scheduler.Sequence(
        prompt_tokens=len(ids), max_tokens=output, ids=np.array(ids, dtype=np.int32), said=[]
    )


def step_through(engine: Any) -> Any:  # noqa: ANN401  # of a file loaded by path
    """One iteration, with a token for everyone that gets one; what has ended leaves."""
    engine.admit()
    step = engine.next_iteration()
    if step is None:
        return None
    engine.advance(step)
    for each in step.yielding:
        each.said.append(7)
        if each.num_generated == each.max_tokens:
            engine.remove(each)
    return step


def run(engine: Any, ids: list[int], output: int = 3) -> Any:  # noqa: ANN401  # of a file loaded by path
    """The sequence, once it has ended."""
    engine.add(one := sequence(ids, output))
    while one in [*engine.active, *engine.waiting]:
        assert step_through(engine) is not None
    return one


@dataclass
class Known:
    """Prefixes that some request has computed, by their tokens."""

    computed: set[tuple[int, ...]] = field(default_factory=set)
    seen: list[Any] = field(default_factory=list)

    def note(self, engine: Any) -> None:  # noqa: ANN401  # of a file loaded by path
        """What began since the last time reuses only what was computed before."""
        for each in self.seen:  # also what has left
            if each.is_generating:
                self.add([*each.ids.tolist(), *each.said[:-1]])
        for each in engine.active:
            if each not in self.seen:
                reused = each.ids[: each.num_reused * SIZE].tolist()
                assert not reused or tuple(reused) in self.computed
                assert each.num_reused * SIZE < each.prompt_tokens
                self.seen.append(each)

    def add(self, ids: list[int]) -> None:
        self.computed |= {tuple(ids[:end]) for end in range(SIZE, len(ids) + 1, SIZE)}


actions = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 400), st.integers(1, 200)),
    st.tuples(st.just("iterate"), st.integers(1, 40), st.just(0), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 30), st.just(0), st.just(0)),
    st.tuples(st.just("stall"), st.integers(0, 30), st.just(0), st.just(0)),
)


@given(st.lists(actions, max_size=60), st.sampled_from([{}, {"credits_reuse": True}]))
def test_no_history_exceeds_the_pool_leaks_a_block_or_takes_one_in_use(
    history: list[tuple[str, int, int, int]], rule: dict[str, bool]
) -> None:
    engine, known = scheduler.Scheduler(CAPACITY, **rule), Known()
    for verb, number, length, output in history:
        inside = [*engine.active, *engine.waiting]
        if verb == "add":
            engine.add(sequence([*document(number, length), len(inside)], output))
        elif verb == "remove" and inside:
            engine.remove(inside[number % len(inside)])
        elif verb == "stall" and engine.active:
            chosen = engine.active[number % len(engine.active)]
            chosen.is_stalled = not chosen.is_stalled
        else:
            for _ in range(number):
                engine.admit()
                known.note(engine)
                step_through(engine)
                known.note(engine)
                assert_sound(engine)
        assert_sound(engine)
    for each in [*engine.active, *engine.waiting]:
        engine.remove(each)
    assert engine.used_blocks == engine.reserved_blocks == engine.reusable.num_referenced == 0
    assert engine.reusable.num_free <= CAPACITY.max_blocks


def assert_sound(engine: Any) -> None:  # noqa: ANN401  # of a file loaded by path
    assert len(engine.active) <= CAPACITY.max_batch_size
    assert 0 <= engine.used_blocks <= engine.reserved_blocks <= CAPACITY.max_blocks
    assert engine.used_blocks + engine.reusable.num_free <= CAPACITY.max_blocks
    for each in engine.active:
        # All that it reuses is there for as long as it runs.
        assert engine.reusable.found(each.keys[: each.num_reused]) == each.num_reused
        assert each.num_prefilled <= each.prompt_tokens
    distinct = {key for each in engine.active for key in each.held}
    assert engine.reusable.num_referenced == len(distinct)


@given(st.lists(actions, max_size=40), st.sampled_from([{}, {"credits_reuse": True}]))
def test_what_waits_always_starts_in_the_end(
    history: list[tuple[str, int, int, int]], rule: dict[str, bool]
) -> None:
    engine = scheduler.Scheduler(CAPACITY, **rule)
    for verb, number, length, output in history:
        if verb == "add":
            engine.add(sequence(document(number, length), output))
        else:
            for _ in range(number):
                step_through(engine)
    while engine.active or engine.waiting:
        assert step_through(engine) is not None


def test_a_document_is_read_once_for_all_its_questions() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    for question in range(3):
        engine.add(sequence([*document(1, 160), question], 5))
    first = step_through(engine)
    # The others wait for what the first is reading: its first block is theirs, too.
    assert [first.chunks, len(engine.waiting)] == [{engine.active[0]: 64}, 2]
    step_through(engine)
    last = step_through(engine)
    assert last.prefill_tokens == 161 - 128
    followers = step_through(engine)
    assert followers.prefill_tokens == 2 * 1
    assert len(engine.active) == 3
    assert engine.used_blocks == 160 // SIZE + 3
    assert engine.reusable.num_reused == 2 * 160 // SIZE


def test_what_running_requests_share_needs_room_only_where_it_is_not_credited() -> None:
    for credits_reuse, num_running in ((True, 3), (False, 1)):
        engine = scheduler.Scheduler(CAPACITY, credits_reuse=credits_reuse)
        for question in range(3):
            engine.add(sequence([*document(1, 480), question], 5))  # 61 of 100 blocks each, 60 of them shared
        while engine.active == [] or not engine.active[0].is_generating:
            step_through(engine)
        step_through(engine)
        assert len(engine.active) == num_running
        assert engine.reserved_blocks <= CAPACITY.max_blocks


def test_reused_tokens_cost_their_reading_alone() -> None:
    cost = scheduler.Roofline(iteration=1.0, kv_token=0.1, prefill_token=0.01, attention_pair=0.001)
    engine = scheduler.Scheduler(CAPACITY)
    run(engine, document(1, 160))
    engine.add(sequence([*document(1, 160), 1, 2], 5))
    engine.admit()
    step = engine.next_iteration()
    assert cost.seconds(step) == 1 + 0.1 * 160 + 0.01 * 2 + 0.001 * (2 * 160 + 3)


def test_another_document_overtakes_one_that_waits_for_its_blocks() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    reader, follower, other = (sequence(document(number, 160), 5) for number in (1, 1, 2))
    for each in (reader, follower, other):
        engine.add(each)
    engine.admit()
    assert engine.active == [reader, other]
    assert list(engine.waiting) == [follower]


def test_at_least_the_last_token_of_a_prompt_is_computed() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    run(engine, document(1, 10 * SIZE))
    again = run(engine, document(1, 10 * SIZE))
    assert again.num_reused == 9
    assert scheduler.block_counts(CAPACITY, again) == {
        "kv_cache_alloc_total_blocks": 11,
        "kv_cache_alloc_new_blocks": 2,
        "kv_cache_reused_blocks": 9,
    }


def test_the_next_segment_reuses_the_prompt_and_the_answer_so_far() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    first = run(engine, document(1, 100), output=61)
    second = run(engine, [*document(1, 100), *first.said], output=5)
    assert second.num_reused == 160 // SIZE  # of 161 tokens, the last of which was never in the cache


def test_the_least_recently_used_blocks_make_room_and_the_last_of_a_prompt_first() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    for number in (1, 2, 1):
        run(engine, document(number, 321))
    run(engine, document(3, 161))  # 40 + 40 + 21 blocks in a pool of 100
    assert run(engine, document(1, 321)).num_reused == 40
    assert run(engine, document(2, 321)).num_reused in range(20, 40)


def test_a_cancelled_prompt_leaves_nothing_to_reuse() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    engine.add(cancelled := sequence(document(1, 200), 5))
    step_through(engine)
    engine.remove(cancelled)
    assert run(engine, document(1, 200)).num_reused == 0


def test_without_reuse_nothing_is_kept() -> None:
    engine = scheduler.Scheduler(CAPACITY)
    for _ in range(2):
        engine.add(one := scheduler.Sequence(prompt_tokens=160, max_tokens=3))
        while one in [*engine.active, *engine.waiting]:
            step_through(engine)
    assert (one.num_reused, engine.reusable.num_free, engine.reusable.num_reused) == (0, 0, 0)


@dataclass
class Collected:
    """A client's stream."""

    ids: list[int] = field(default_factory=list)
    ended: Event = field(default_factory=Event)

    def send(self, ids: list[int], *, final: bool) -> None:
        self.ids += ids
        if final:
            self.ended.set()

    def fail(self, message: str) -> None:
        raise AssertionError(message)

    def cancel(self) -> None:
        raise AssertionError

    def is_cancelled(self) -> bool:
        return False


def answers(prompts: list[list[int]], *, reuses: bool) -> tuple[list[list[int]], int]:
    """What the engine's loop says to each prompt, and how many blocks it reused."""
    batching, speech = engine_module("batching"), engine_module("speech")
    synthetic, spoken = engine_module("synthetic"), engine_module("spoken")
    speaker = synthetic.SyntheticSpeaker(None, synthetic.OutputLength(20, 0.5))
    engine = scheduler.Scheduler(CAPACITY)
    loop = batching.BatchingLoop(
        engine,
        scheduler.Roofline(iteration=1e-5, kv_token=0.0, prefill_token=0.0, attention_pair=0.0),
        engine_module("gauges").Gauges(lambda _name, _help, _labels: Gauge()),
        engine_module("server").ServerWatch(0),
        engine_module("trace").Trace(""),
        time_scale=1.0,
    )
    streams = []
    loop.start()
    for number, prompt in enumerate(prompts):
        ids = np.array(prompt, dtype=np.int32)
        ask = speech.Ask(ids=ids, max_tokens=60, seed=number, temperature=1.0)
        said: Future[Any] = Future()
        said.set_result(speech.prepare(speaker, ask))
        streams.append(reply := Collected())
        made = scheduler.Sequence(prompt_tokens=len(ids), max_tokens=60, ids=ids if reuses else None, said=[])
        loop.submit(
            spoken.Spoken(
                request_id=str(number), sequence=made, reply=reply, speech=said, tokens_per_response=1
            )
        )
    assert all(each.ended.wait(PATIENCE) for each in streams)
    loop.close()
    return [each.ids for each in streams], engine.reusable.num_reused


class Gauge:
    def set(self, value: float) -> None:
        assert value >= 0


def test_reuse_changes_no_answer() -> None:
    prompts = [[*document(number % 3, 100 + number), number] for number in range(24)]
    plain, reused = answers(prompts, reuses=False), answers(prompts, reuses=True)
    assert plain[0] == reused[0]
    assert plain[1] == 0 < reused[1]
