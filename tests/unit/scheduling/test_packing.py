from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.engines.capacity import Budget, Capacity, ReservedBlocks, free_budget
from jobs.scheduling.packing import (
    Candidate,
    Choice,
    Packer,
    PackingPolicy,
    Reserved,
    choose,
    fits,
    in_cohort,
    shadow_of,
)
from jobs.states import Lane

CAPACITY = Capacity(
    max_batch_size=4, max_blocks=100, tokens_per_block=64, max_input_len=6000, max_seq_len=6400
)
RULES = PackingPolicy(window=8, stretch=0.2, batch_patience=timedelta(seconds=600))
LONG_AGO = timedelta(hours=1)

waits = st.integers(0, 1000).map(lambda seconds: timedelta(seconds=seconds))
jobs = st.builds(
    Candidate,
    job_id=st.just(UUID(int=0)),
    blocks=st.integers(1, 100),
    steps=st.integers(1, 50),
    lane=st.sampled_from(Lane),
    group=st.sampled_from(["one", "two"]),
    waited=waits,
    alone=st.booleans(),
)
running_jobs = st.builds(
    Reserved,
    job_id=st.uuids(version=4),
    blocks=st.integers(1, 60),
    steps_left=st.integers(0, 50),
    lane=st.sampled_from(Lane),
)


@st.composite
def queues(draw: st.DrawFn) -> list[Candidate]:
    listed = draw(st.lists(jobs, max_size=12))
    ranked = sorted(listed, key=lambda each: each.lane is Lane.BATCH)
    return [replace(each, job_id=UUID(int=place)) for place, each in enumerate(ranked)]


@st.composite
def engines(draw: st.DrawFn) -> list[Reserved]:
    running: list[Reserved] = []
    for each in draw(st.lists(running_jobs, max_size=4)):
        if sum(other.blocks for other in running) + each.blocks <= CAPACITY.max_blocks:
            running.append(each)
    return running


def budget_beside(running: Iterable[Reserved]) -> Budget:
    return free_budget(CAPACITY, [ReservedBlocks(each.blocks) for each in running])


def pack(queue: Sequence[Candidate], running: Sequence[Reserved], policy: PackingPolicy = RULES) -> Choice:
    return choose(queue, running, budget_beside(running), max_batch_size=4, policy=policy)


def started(queue: Iterable[Candidate], choice: Choice) -> Candidate | None:
    return next((each for each in queue if each.job_id == choice.start), None)


@given(queues(), engines(), st.none() | st.integers(0, 100))
def test_packing_never_exceeds_slots_or_blocks(
    queue: list[Candidate], running: list[Reserved], spare_blocks: int | None
) -> None:
    budget = free_budget(
        CAPACITY, [ReservedBlocks(each.blocks) for each in running], spare_blocks=spare_blocks
    )
    start = started(queue, choose(queue, running, budget, max_batch_size=4, policy=RULES))
    if start is not None:
        assert len(running) < CAPACITY.max_batch_size
        assert sum(each.blocks for each in running) + start.blocks <= CAPACITY.max_blocks
        assert spare_blocks is None or start.blocks <= spare_blocks
        assert not (start.alone and running)


@given(queues(), engines())
def test_choices_in_turn_are_those_of_a_queue_and_an_engine_read_anew(
    queue: list[Candidate], running: list[Reserved]
) -> None:
    policy = replace(RULES, window=3)
    packer = Packer(queue, running, budget_beside(running), max_batch_size=4, policy=policy)
    left, busy = list(queue), list(running)
    while (choice := packer.choose()).start is not None:
        assert choice == pack(left, busy, policy)
        start = next(each for each in left if each.job_id == choice.start)
        packer.start(start.job_id)
        left.remove(start)
        busy.append(Reserved(start.job_id, start.blocks, start.steps, lane=start.lane))
        if start.alone:
            assert packer.choose() == Choice(start=None)
            return
    assert pack(left, busy, policy) == choice


@given(queues())
def test_an_idle_engine_always_starts_something(queue: list[Candidate]) -> None:
    assert (pack(queue, []).start is not None) == bool(queue)


@given(queues(), engines())
def test_a_start_postpones_the_head_only_if_it_is_its_peer(
    queue: list[Candidate], running: list[Reserved]
) -> None:
    queue = [each for each in queue if each.lane is Lane.BATCH]
    start = started(queue, pack(queue, running))
    if start is None or in_cohort(queue[0], start, RULES):
        return
    after = [*running, Reserved(start.job_id, start.blocks, start.steps)]
    before = shadow_of(queue[0], running, budget_beside(running))
    assert shadow_of(queue[0], after, budget_beside(after)).steps <= before.steps


@given(queues(), engines())
def test_of_jobs_submitted_together_the_largest_that_fits_starts(
    queue: list[Candidate], running: list[Reserved]
) -> None:
    together = [replace(each, lane=Lane.BATCH, group="one", waited=LONG_AGO, alone=False) for each in queue]
    budget = budget_beside(running)
    fitting = [each.blocks for each in together[: RULES.window] if fits(each, budget)]
    start = started(together, pack(together, running))
    assert (start.blocks if start else None) == max(fitting, default=None)


@given(queues(), st.integers(0, 3))
def test_the_interactive_lane_holds_at_most_its_share_of_the_slots_while_batch_waits(
    queue: list[Candidate], held: int
) -> None:
    running = [Reserved(UUID(int=100 + n), 1, 9, Lane.INTERACTIVE) for n in range(held)]
    start = started(queue, pack(queue, running))
    batch_waits = any(each.lane is Lane.BATCH for each in queue)
    if held == 3 and batch_waits and start is not None:
        assert start.lane is Lane.BATCH
    if held == 3 and not batch_waits and queue and fits(queue[0], budget_beside(running)):
        assert start is queue[0]


@given(queues(), engines())
def test_an_interactive_head_that_fits_goes_first_while_batch_has_its_slot(
    queue: list[Candidate], running: list[Reserved]
) -> None:
    patient = [replace(each, waited=timedelta(0)) for each in queue]
    held = sum(each.lane is Lane.INTERACTIVE for each in running)
    goes_first = patient and patient[0].lane is Lane.INTERACTIVE and held < 3
    if goes_first and fits(patient[0], budget_beside(running)):
        assert pack(patient, running).start == patient[0].job_id


def test_priority_decides_only_inside_a_group() -> None:
    high = Candidate(UUID(int=1), blocks=10, steps=10, group=("one", 1), waited=timedelta(0))
    low = Candidate(UUID(int=2), blocks=50, steps=10, group=("one", 0), waited=LONG_AGO)
    assert pack([high, low], []).start == high.job_id


def test_a_batch_job_kept_out_for_too_long_gets_the_blocks_it_needs() -> None:
    chat = [Candidate(UUID(int=n), blocks=20, steps=40, lane=Lane.INTERACTIVE) for n in (1, 2)]
    book = Candidate(UUID(int=9), blocks=90, steps=10)
    running = [Reserved(UUID(int=5), 20, 8, Lane.INTERACTIVE), Reserved(UUID(int=6), 20, 5, Lane.INTERACTIVE)]
    assert pack([*chat, book], running).start == chat[0].job_id
    assert pack([*chat, replace(book, waited=LONG_AGO)], running).start is None
    short = replace(chat[1], steps=8)
    assert pack([chat[0], short, replace(book, waited=LONG_AGO)], running).start == short.job_id
    assert pack([*chat, replace(book, waited=LONG_AGO)], []).start == book.job_id


def test_a_head_that_no_end_can_make_room_for_does_not_stop_the_engine() -> None:
    running = [Reserved(UUID(int=5), 20, 8)]
    budget = free_budget(CAPACITY, [ReservedBlocks(20)], spare_blocks=30)  # somebody else uses the engine
    large = Candidate(UUID(int=1), blocks=90, steps=5, waited=LONG_AGO)
    small = Candidate(UUID(int=2), blocks=15, steps=99)
    assert choose([large, small], running, budget, max_batch_size=4, policy=RULES).start == small.job_id
    assert pack([large, small], running).start is None


def test_a_stream_of_small_jobs_does_not_starve_a_large_one() -> None:
    stream = [(4 * place, Candidate(UUID(int=place + 1), blocks=30, steps=10)) for place in range(300)]
    large = Candidate(UUID(int=1000), blocks=90, steps=10)
    starts = serve([*stream, (21, large)])
    assert starts[large.job_id] <= 21 + 20


arrivals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 100), st.integers(1, 20)), min_size=1, max_size=25
)


@given(arrivals)
def test_every_job_starts_after_its_elders_and_cohort_alone(sizes: list[tuple[int, int, int]]) -> None:
    timed = [
        (at, Candidate(UUID(int=place), blocks=blocks, steps=steps))
        for place, (at, blocks, steps) in enumerate(sorted(sizes))
    ]
    starts = serve(timed)
    assert starts.keys() == {each.job_id for _, each in timed}
    longest = max(each.steps for _, each in timed)
    for at, job in timed:
        wait = starts[job.job_id] - at
        ahead = [each.steps for came, each in timed if came <= at + RULES.stretch * wait and each is not job]
        assert wait <= sum(ahead) + (len(ahead) + 1) * longest


def serve(timed: Sequence[tuple[int, Candidate]]) -> dict[UUID, int]:
    """When each job starts, in steps, on an engine where every job takes exactly its steps."""
    coming = sorted(timed, key=lambda each: each[0])
    arrived = {job.job_id: at for at, job in timed}
    ends: dict[UUID, int] = {}
    starts: dict[UUID, int] = {}
    queue: list[Candidate] = []
    reserved: dict[UUID, Candidate] = {}
    for now in count():
        queue += [job for at, job in coming if at == now]
        reserved = {job_id: job for job_id, job in reserved.items() if ends[job_id] > now}
        while True:
            running = [
                Reserved(each.job_id, each.blocks, ends[each.job_id] - now) for each in reserved.values()
            ]
            aged = [replace(job, waited=timedelta(seconds=now - arrived[job.job_id])) for job in queue]
            start = started(queue, pack(aged, running))
            if start is None:
                break
            queue.remove(start)
            reserved[start.job_id] = start
            starts[start.job_id], ends[start.job_id] = now, now + start.steps
        assert len(reserved) <= CAPACITY.max_batch_size
        assert sum(each.blocks for each in reserved.values()) <= CAPACITY.max_blocks
        if len(starts) == len(timed):
            return starts
    raise AssertionError
