"""The engine never holds more than it has, and the queue's order is the one that is promised."""

from rig.engines import Script
from rig.waiting import eventually
from rig.world import BLOCKS, SLOTS, TOKENS_PER_BLOCK, Caller, FedEngine, World

# More than half of the pool: two of these never run together.
LARGE_WORDS = BLOCKS * TOKENS_PER_BLOCK * 6 // 10
# The whole pool but for a few blocks.
HUGE_WORDS = BLOCKS * TOKENS_PER_BLOCK * 9 // 10


def fill_slots(caller: Caller, engine: FedEngine, **fields: object) -> list[int]:
    """Fill every slot with a held request; return their marks."""
    script = Script(hold_at=2)
    marks = [caller.submit(script, **fields).mark for _ in range(SLOTS)]  # type: ignore[arg-type]
    engine.scripted.holding(*marks)
    return marks


def test_two_workers_never_send_more_than_the_engine_holds(
    world: World, caller: Caller, engine: FedEngine
) -> None:
    proxies = engine.proxy, world.new_proxy()
    other = engine.start_worker(proxies[1])
    eventually(lambda: proxies[1].num_messages >= 30, what="the second worker runs")
    for each in proxies:
        each.delay_seconds = 0.05  # their transactions overlap
    try:
        for _ in range(4):  # both workers are idle, and find the same jobs at the same time
            for each in proxies:
                each.freeze()
            for number in range(2 * SLOTS):
                caller.submit(Script(hold_at=2), words=(0, 500)[number % 2], max_tokens=32, hook=None)
            for each in proxies:
                each.thaw()
            eventually(lambda: len(engine.scripted.running) >= SLOTS - 1, what="the engine is full")
            engine.wait_for_tick()
            engine.scripted.release_all()
            eventually(lambda: not world.rows.unfinished(), what="all jobs have ended")
    finally:
        for each in proxies:
            each.thaw()
        assert other.stop() == 0


def test_cancelling_a_running_job_frees_its_slot_and_blocks(caller: Caller, engine: FedEngine) -> None:
    large = caller.submit(Script(length=40, hold_at=4), words=LARGE_WORDS, ends=("cancelled",))
    engine.scripted.holding(large.mark)
    waiting = caller.submit(words=LARGE_WORDS)
    assert waiting.mark not in engine.scripted.marks()
    large.cancel()
    assert large.ended()["state"] == "cancelled"
    assert waiting.ended()["state"] == "completed"
    assert large.now()["state"] == "cancelled"


def test_a_request_that_lingers_in_the_engine_keeps_its_blocks(caller: Caller, engine: FedEngine) -> None:
    lingering = caller.submit(Script(hold_at=4, is_deaf=True), words=LARGE_WORDS, ends=("cancelled",))
    engine.scripted.holding(lingering.mark)
    lingering.cancel()
    lingering.is_in("cancelled")
    waiting = caller.submit(words=LARGE_WORDS)
    for _ in range(2):
        engine.wait_for_tick()
    assert waiting.mark not in engine.scripted.marks()
    assert engine.world.rows.reserved(engine.name).requests == 1
    engine.scripted.release(lingering.mark)
    assert waiting.ended()["state"] == "completed"


def test_requests_that_linger_in_the_engine_keep_their_slots(caller: Caller, engine: FedEngine) -> None:
    script = Script(hold_at=4, is_deaf=True)
    lingering = [caller.submit(script, ends=("cancelled",)) for _ in range(SLOTS)]
    engine.scripted.holding(*(each.mark for each in lingering))
    for each in lingering:
        each.cancel()
    for each in lingering:
        each.is_in("cancelled")
    waiting = caller.submit()
    for _ in range(2):
        engine.wait_for_tick()
    assert waiting.mark not in engine.scripted.marks()
    engine.scripted.release(*(each.mark for each in lingering))
    assert waiting.ended()["state"] == "completed"


def test_small_jobs_never_postpone_the_large_one_at_the_head(world: World, engine: FedEngine) -> None:
    # One whose earlier jobs foretell nothing of how long its answers are.
    caller = world.tenant("newcomer")
    running = [
        caller.submit(Script(hold_at=2), words=BLOCKS * TOKENS_PER_BLOCK // 4, max_tokens=16)
        for _ in range(2)
    ]
    engine.scripted.holding(*(each.mark for each in running))
    huge = caller.submit(words=HUGE_WORDS, max_tokens=16)
    huge.is_in("queued")  # a job has its place in the queue once its prompt is counted
    engine.wait_for_tick()
    small = [caller.submit(max_tokens=300, words=16) for _ in range(6)]
    engine.scripted.release(running[0].mark)  # its blocks suffice for the small ones, not for the huge one
    running[0].ended()
    for _ in range(2):
        engine.wait_for_tick()
    engine.scripted.release(running[1].mark)
    huge.ended()
    for each in small:
        each.ended()
    order = engine.scripted.arrivals()
    assert order.index(huge.mark) < min(order.index(each.mark) for each in small)


def test_small_jobs_fill_the_room_that_a_large_one_leaves(caller: Caller, engine: FedEngine) -> None:
    large = caller.submit(Script(length=400, hold_at=2), words=LARGE_WORDS, max_tokens=400)
    engine.scripted.holding(large.mark)
    other = caller.submit(words=LARGE_WORDS)
    small = [caller.submit(max_tokens=8) for _ in range(4)]
    assert {each.ended()["state"] for each in small} == {"completed"}
    assert other.mark not in engine.scripted.marks()
    engine.scripted.release(large.mark)


def test_priority_orders_the_jobs_of_a_tenant(caller: Caller, engine: FedEngine) -> None:
    blockers = fill_slots(caller, engine)
    # The slot's next job may have been chosen before the others came; while it runs, the queue is read again.
    first = caller.submit(Script(pace_seconds=0.2))
    jobs = [caller.submit(priority=each) for each in ("low", "normal", "high")]
    engine.scripted.release(blockers[0])
    for each in jobs:
        each.ended()
    arrived = [each for each in engine.scripted.arrivals() if each not in (*blockers, first.mark)]
    assert arrived == [each.mark for each in reversed(jobs)]
    engine.scripted.release(*blockers)


def test_a_tenant_with_a_long_queue_does_not_hold_up_another(
    world: World, caller: Caller, engine: FedEngine
) -> None:
    stranger = world.tenant("stranger")
    blockers = fill_slots(caller, engine)
    # They take a while: the queue is read again between them.
    long_queue = [caller.submit(Script(pace_seconds=0.05)) for _ in range(12)]
    short_queue = [stranger.submit(Script(pace_seconds=0.05)) for _ in range(4)]
    engine.scripted.release(blockers[0])
    for each in [*short_queue, *long_queue]:
        each.ended()
    arrived = [each for each in engine.scripted.arrivals() if each not in blockers]
    last = max(arrived.index(each.mark) for each in short_queue)
    assert last < len(long_queue), "the tenants take turns: in order of arrival it would be the very last"
    engine.scripted.release(*blockers)


def test_an_interactive_request_gets_room_and_the_preempted_job_resumes_from_its_output(
    world: World, engine: FedEngine
) -> None:
    # One whose earlier jobs foretell nothing: each request asks for the whole answer.
    caller = world.tenant("interactive")
    jobs = [caller.submit(Script(length=400, hold_at=300), max_tokens=400) for _ in range(SLOTS)]
    engine.scripted.holding(*(each.mark for each in jobs))
    engine.scripted.scripts |= {each.mark: Script(length=400, pace_seconds=0.2) for each in jobs}
    assert caller.chat()
    resumed = eventually(
        lambda: [each for each in engine.scripted.requests if each.num_given >= 300],
        what="the preempted job goes on",
    )
    engine.scripted.scripts |= {each.mark: Script(length=400) for each in jobs}
    assert len({each.mark for each in resumed} & {each.mark for each in jobs}) == 1, "no more than needed"
    assert {each.ended()["attempt"] for each in jobs} == {0}
