from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.engines.capacity import Budget, Capacity, ReservedBlocks, free_budget, room_of
from jobs.scheduling.packing import (
    Candidate,
    Packer,
    PackingPolicy,
    Reserved,
    in_cohort,
    shadow_of,
    wait_behind_waiting,
    with_slot_waits,
)
from jobs.scheduling.preemption import choose_preemptions
from jobs.states import Lane

SLOTS, ROOM, BLOCKS = 4, 2, 100
CAPACITY = Capacity(
    max_batch_size=SLOTS,
    max_blocks=BLOCKS,
    tokens_per_block=64,
    max_input_len=6000,
    max_seq_len=6400,
    waiting_room=ROOM,
)
POLICY = PackingPolicy(window=8, stretch=0.2, waiting_tokens=3000)

sizes = st.integers(1, 60)
sent = st.builds(
    Reserved,
    job_id=st.uuids(version=4),
    blocks=st.integers(1, 15),
    steps_left=st.integers(1, 50),
    unread_tokens=st.integers(0, 2000),
)
queued = st.builds(
    Candidate,
    job_id=st.uuids(version=4),
    blocks=sizes,
    steps=st.integers(1, 50),
    waited=st.integers(0, 1000).map(lambda seconds: timedelta(seconds=seconds)),
    unread_tokens=st.integers(0, 4000),
)
engines = st.lists(sent, max_size=SLOTS + ROOM)
queues = st.lists(queued, max_size=8)


def budget_beside(running: Sequence[Reserved]) -> Budget:
    return free_budget(CAPACITY, [ReservedBlocks(each.blocks) for each in running])


def packer_of(queue: Sequence[Candidate], running: Sequence[Reserved]) -> Packer:
    in_order = with_slot_waits(running, SLOTS)
    return Packer(queue, in_order, budget_beside(running), max_batch_size=SLOTS, policy=POLICY)


def test_the_waiting_room_is_an_eighth_of_the_slots_of_an_engine_that_counts_who_waits() -> None:
    assert [room_of(slots, counts_waiting=True) for slots in (1, 4, 15, 16, 64, 256)] == [0, 0, 0, 2, 8, 32]
    assert room_of(64, counts_waiting=False) == 0
    assert room_of(4, configured=1, counts_waiting=False) == 1
    assert room_of(64, configured=0, counts_waiting=True) == 0


@given(queues, engines)
def test_requests_never_exceed_slots_and_waiting_room(
    queue: list[Candidate], running: list[Reserved]
) -> None:
    packer, started = packer_of(queue, running), 0
    blocks = sum(each.blocks for each in running)
    while (choice := packer.choose()).start is not None:
        packer.start(choice.start)
        started += 1
        blocks += next(each.blocks for each in queue if each.job_id == choice.start)
    assert len(running) + started <= SLOTS + ROOM
    assert blocks <= BLOCKS


@given(queues, engines)
def test_a_job_that_waits_for_a_slot_does_not_postpone_the_head(
    queue: list[Candidate], running: list[Reserved]
) -> None:
    busy = with_slot_waits(running, SLOTS)
    start = packer_of(queue, running).choose().start
    if start is None:
        return
    chosen = next(each for each in queue if each.job_id == start)
    if in_cohort(queue[0], chosen, POLICY):
        return
    before = shadow_of(queue[0], busy, budget_beside(running))
    now = Reserved(chosen.job_id, chosen.blocks, chosen.steps)
    after = with_slot_waits([*running, now], SLOTS)
    assert shadow_of(queue[0], after, budget_beside([*running, now])).steps <= before.steps


@given(queues, engines)
def test_nothing_enters_the_waiting_room_while_an_interactive_job_waits(
    queue: list[Candidate], running: list[Reserved]
) -> None:
    full = [*running, *(Reserved(UUID(int=n), 1, 9) for n in range(SLOTS - len(running)))]
    chat = Candidate(UUID(int=99), blocks=1, steps=1, lane=Lane.INTERACTIVE)
    assert packer_of([chat, *queue], full).choose().start is None


def test_no_job_joins_many_unread_tokens_in_the_waiting_room() -> None:
    running = [Reserved(UUID(int=n), 1, 9) for n in range(SLOTS)]
    long = Candidate(UUID(int=10), blocks=5, steps=5, unread_tokens=9000)
    short = Candidate(UUID(int=11), blocks=1, steps=5, unread_tokens=10)
    packer = packer_of([long, short], running)
    assert packer.choose().start == long.job_id  # whatever its own length: otherwise others would overtake it
    packer.start(long.job_id)
    assert packer.choose().start is None


def test_jobs_in_the_waiting_room_leave_first_for_an_interactive_one() -> None:
    in_slots = [
        Reserved(UUID(int=n), 10, 500, recompute_tokens=tokens, new_tokens=1000)
        for n, tokens in enumerate([700, 300, 800, 900])
    ]
    waiting = [Reserved(UUID(int=n), 10, 500, recompute_tokens=9000) for n in (7, 8)]
    chat = Candidate(UUID(int=99), blocks=10, steps=10, lane=Lane.INTERACTIVE)
    running = with_slot_waits([*in_slots, *waiting], SLOTS)
    leaving = choose_preemptions(
        chat, running, budget_beside(running), max_batch_size=SLOTS, policy=POLICY, batch_waits=True
    )
    assert sorted(each.int for each in leaving) == [1, 7, 8]


def test_jobs_in_the_waiting_room_leave_even_if_none_in_a_slot_may() -> None:
    young = [Reserved(UUID(int=n), 10, 500, recompute_tokens=700, new_tokens=3) for n in range(4)]
    waiting = [Reserved(UUID(int=n), 10, 500, recompute_tokens=9000) for n in (7, 8)]
    chat = Candidate(UUID(int=99), blocks=10, steps=10, lane=Lane.INTERACTIVE)
    running = with_slot_waits([*young, *waiting], SLOTS)
    leaving = choose_preemptions(
        chat, running, budget_beside(running), max_batch_size=SLOTS, policy=POLICY, batch_waits=True
    )
    assert sorted(each.int for each in leaving) == [7, 8]


def test_whole_jobs_and_those_with_output_do_not_leave_for_nothing() -> None:
    young = [Reserved(UUID(int=n), 10, 500, recompute_tokens=700, new_tokens=3) for n in range(4)]
    last = [
        Reserved(UUID(int=7), 10, 500, is_whole=True),
        Reserved(UUID(int=8), 10, 500, recompute_tokens=9000, new_tokens=3, has_read=True),
    ]
    chat = Candidate(UUID(int=99), blocks=10, steps=10, lane=Lane.INTERACTIVE)
    running = with_slot_waits([*young, *last], SLOTS)
    leaving = choose_preemptions(
        chat, running, budget_beside(running), max_batch_size=SLOTS, policy=POLICY, batch_waits=True
    )
    assert leaving == []


def test_a_request_in_the_waiting_room_ends_after_the_first_slot_is_free() -> None:
    running = [Reserved(UUID(int=n), 1, steps) for n, steps in enumerate([30, 10, 20, 40, 5, 7])]
    waiting = with_slot_waits(running, SLOTS)[SLOTS:]
    assert [(each.steps_left, each.waits) for each in waiting] == [(15, True), (22, True)]


def test_a_job_that_goes_on_waits_behind_those_that_wait() -> None:
    steps = [30, 10, 20, 0, 5, 7]  # the fourth is the one that goes on: the fifth has its slot
    running = with_slot_waits([Reserved(UUID(int=n), 1, each) for n, each in enumerate(steps)], SLOTS)
    others = [each for each in running if each.job_id != UUID(int=3)]
    assert [each.steps_left for each in others] == [30, 10, 20, 5, 12]
    assert wait_behind_waiting(others) == 10
    assert wait_behind_waiting(others[:3]) == 0


@given(st.lists(st.tuples(st.integers(0, 40), sizes, st.integers(1, 20)), min_size=1, max_size=20))
def test_every_job_starts_behind_a_waiting_room(timed: list[tuple[int, int, int]]) -> None:
    coming = [
        (at, Candidate(UUID(int=place), blocks=blocks, steps=steps))
        for place, (at, blocks, steps) in enumerate(sorted(timed))
    ]
    arrived = {job.job_id: at for at, job in coming}
    starts = serve(coming)
    longest = max(each.steps for _, each in coming)
    for at, job in coming:
        wait = starts[job.job_id] - at
        ahead = [
            each.steps for came, each in coming if came <= at + POLICY.stretch * wait and each is not job
        ]
        assert wait <= sum(ahead) + (len(ahead) + 1) * longest
    assert starts.keys() == arrived.keys()


def serve(coming: Sequence[tuple[int, Candidate]]) -> dict[UUID, int]:
    """Return when the engine starts each job, in steps: in the order sent, as slots become free."""
    queue: list[Candidate] = []
    inside: list[Candidate] = []
    starts: dict[UUID, int] = {}
    ends: dict[UUID, int] = {}
    arrived = {job.job_id: at for at, job in coming}
    for now in count():
        queue += [job for at, job in coming if at == now]
        inside = [each for each in inside if ends.get(each.job_id, now + 1) > now]
        while True:
            for each in inside[:SLOTS]:
                ends.setdefault(each.job_id, starts.setdefault(each.job_id, now) + each.steps)
            busy = [
                Reserved(each.job_id, each.blocks, ends.get(each.job_id, now + each.steps) - now)
                for each in inside
            ]
            aged = [replace(job, waited=timedelta(seconds=now - arrived[job.job_id])) for job in queue]
            start = packer_of(aged, busy).choose().start
            if start is None:
                break
            chosen = next(each for each in queue if each.job_id == start)
            queue.remove(chosen)
            inside.append(chosen)
        assert len(inside) <= SLOTS + ROOM
        assert sum(each.blocks for each in inside) <= BLOCKS
        if len(starts) == len(coming):
            return starts
    raise AssertionError
