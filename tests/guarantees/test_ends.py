"""How jobs end, whatever becomes of their worker, their engine, Postgres or the broker."""

import signal

import pytest

from rig.engines import Script
from rig.waiting import eventually
from rig.world import SLOTS, Caller, FedEngine, World


def test_a_worker_that_lost_its_lease_writes_nothing(world: World, caller: Caller, engine: FedEngine) -> None:
    """The write is on its way when the lease ends, and arrives while the next worker runs the job."""
    job = caller.submit(Script(hold_at=0, versions=(0, 1)))
    engine.scripted.holding(job.mark)
    lease = world.rows.lease_of(job.id)
    (first,) = engine.scripted.of(job.mark)
    engine.proxy.freeze()
    first.is_released = True
    eventually(lambda: world.rows.lease_of(job.id) != lease, what="the lease ends")
    assert first.num_sent == 8, "the first worker has the whole answer"
    other = engine.start_worker(world.new_proxy())
    try:
        eventually(lambda: len(engine.scripted.of(job.mark)) == 2, what="another worker runs the job")
        engine.proxy.count()
        engine.proxy.thaw()
        eventually(lambda: engine.proxy.num_messages >= 30, what="the first worker goes on")
        assert engine.worker is not None
        assert engine.worker.is_running
        assert job.now()["state"] == "running"
        assert world.rows.num_results(job.id) == 0
        engine.scripted.release(job.mark)
        assert job.ended()["state"] == "completed"
    finally:
        engine.proxy.thaw()
        assert other.stop() == 0


def test_a_job_that_is_cancelled_stays_cancelled_and_cancelling_is_stronger_than_expiry(
    world: World, caller: Caller, engine: FedEngine
) -> None:
    worker = engine.feed()
    script, cancelled = Script(hold_at=2), ("cancelled",)
    expiring, cancelling = (caller.submit(script, ends=cancelled, completion_window="1h") for _ in range(2))
    engine.scripted.holding(expiring.mark, cancelling.mark)
    world.freeze(worker)
    try:
        cancelling.cancel()
        for each in (expiring, cancelling):
            world.rows.let_window_end(each.id)
        eventually(lambda: world.rows.stop_reason_of(expiring.id), what="its window ends")
        expiring.cancel()
    finally:
        worker.send(signal.SIGCONT)
    assert expiring.ended()["state"] == "cancelled"
    assert cancelling.ended()["state"] == "cancelled"
    assert cancelling.cancel()["state"] == "cancelled"


def test_a_job_expires_when_its_window_ends_whether_it_runs_or_waits(
    world: World, caller: Caller, engine: FedEngine
) -> None:
    jobs = [
        caller.submit(Script(hold_at=2), completion_window="1h", ends=("expired",)) for _ in range(SLOTS + 1)
    ]
    eventually(lambda: len(engine.scripted.marks()) == SLOTS, what="the slots are full")
    for each in jobs:
        world.rows.let_window_end(each.id)
    assert {each.ended()["state"] for each in jobs} == {"expired"}
    assert len(engine.scripted.marks()) == SLOTS


def test_a_prompt_that_kills_the_engine_fails_alone(caller: Caller, engine: FedEngine) -> None:
    jobs = [caller.submit(Script(hold_at=2)) for _ in range(2)]
    engine.scripted.holding(*(each.mark for each in jobs))
    poison = caller.submit(Script(kills=True), ends=("failed",))
    engine.scripted.release_all()
    later = [caller.submit() for _ in range(4)]
    assert poison.ended()["state"] == "failed"
    assert {each.ended()["state"] for each in [*jobs, *later]} == {"completed"}
    requests = engine.scripted.of(poison.mark)
    assert len(requests) == 3
    assert requests[-1].others == (), "it runs alone before it fails"
    assert {each.now()["attempt"] for each in [*jobs, *later]} == {0}


def test_the_loss_of_an_engine_costs_no_attempt(caller: Caller, engine: FedEngine) -> None:
    jobs = [caller.submit(Script(length=40, hold_at=20)) for _ in range(3)]
    marks = [each.mark for each in jobs]
    engine.scripted.holding(*marks)
    engine.scripted.is_down = True
    engine.scripted.die()
    for each in jobs:
        each.is_in("queued")
    waiting = caller.submit()
    engine.scripted.is_down = False
    engine.scripted.holding(*marks)
    engine.scripted.release(*marks)
    assert {each.ended()["attempt"] for each in [*jobs, waiting]} == {0}


def test_a_worker_that_shuts_down_hands_back_its_leases_with_their_output(
    world: World, caller: Caller, engine: FedEngine
) -> None:
    jobs = [caller.submit(Script(length=40, hold_at=20)) for _ in range(3)]
    engine.scripted.holding(*(each.mark for each in jobs))
    worker = engine.feed()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert [world.rows.lease_of(each.id) for each in jobs] == [None] * 3
    assert {each.now()["state"] for each in jobs} == {"queued"}
    engine.feed()
    engine.scripted.release_all()
    for each in jobs:
        assert each.ended()["attempt"] == 0
        assert engine.scripted.of(each.mark)[-1].num_given == 20, "it goes on from its output"


def test_a_killed_worker_s_jobs_run_again(world: World, caller: Caller, engine: FedEngine) -> None:
    jobs = [caller.submit(Script(length=12, hold_at=4)) for _ in range(3)]
    marks = [each.mark for each in jobs]
    engine.scripted.holding(*marks)
    eventually(lambda: all(world.rows.lease_of(each.id) for each in jobs), what="the jobs are claimed")
    engine.kill_worker()
    # No worker of this host starts: the service worker rescues them once their leases have ended.
    eventually(
        lambda: all(world.rows.lease_of(each.id) is None for each in jobs), what="the lost jobs are rescued"
    )
    engine.feed()
    engine.scripted.release(*marks)
    assert {each.ended()["attempt"] for each in jobs} == {0}


def test_a_lease_that_is_renewed_is_never_taken(world: World, caller: Caller, engine: FedEngine) -> None:
    job = caller.submit(Script(hold_at=4))
    engine.scripted.holding(job.mark)
    # The engine may have the request before its claim is committed.
    lease = eventually(lambda: world.rows.lease_of(job.id), what="the job is claimed")
    end = world.rows.lease_ends(job.id)
    eventually(lambda: world.rows.now() > end, what="the first term of the lease is over")
    assert world.rows.lease_of(job.id) == lease
    engine.scripted.release(job.mark)
    job.ended()
    assert len(engine.scripted.of(job.mark)) == 1


def test_running_jobs_survive_a_failover_of_postgres(world: World, caller: Caller, engine: FedEngine) -> None:
    jobs = [caller.submit(Script(length=12, hold_at=4)) for _ in range(3)]
    engine.scripted.holding(*(each.mark for each in jobs))
    proxies = (engine.proxy, world.service_proxy, world.api_proxy)
    for proxy in proxies:
        proxy.refuse(is_refusing=True)
    world.rows.end_sessions()
    engine.scripted.release_all()
    assert caller.http.get(f"/v1/jobs/{jobs[0].id}").status_code == 503
    for proxy in proxies:
        proxy.refuse(is_refusing=False)
    eventually(lambda: caller.http.get(f"/v1/jobs/{jobs[0].id}").status_code == 200)
    assert {each.ended()["attempt"] for each in jobs} == {0}
    assert [len(engine.scripted.of(each.mark)) for each in jobs] == [1, 1, 1]


@pytest.mark.usefixtures("engine")
def test_jobs_move_without_the_broker(world: World, caller: Caller) -> None:
    world.broker_gate.refuse(is_refusing=True)
    try:
        jobs = [caller.submit() for _ in range(6)]
        assert {each.ended()["state"] for each in jobs} == {"completed"}
        assert caller.chat()
    finally:
        world.broker_gate.refuse(is_refusing=False)
