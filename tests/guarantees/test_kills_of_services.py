"""The API and the service worker are killed at their messages to Postgres."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from rig.engines import Script
from rig.kill_points import IS_PROOF, points
from rig.proxy import Trap
from rig.waiting import eventually
from rig.world import Caller, FedEngine, Job, World

pytestmark = pytest.mark.timeout(36_000 if IS_PROOF else 600)


def submit_again_and_again(world: World, caller: Caller, engine: FedEngine) -> Job:
    """Submit a job under one key until it is accepted, as callers do."""
    mark = world.next_mark()
    body = caller.body(mark, engine=engine, max_tokens=64, words=0, hook="/hook")
    engine.scripted.scripts[mark] = Script()

    def accepted() -> str | None:
        try:
            answer = caller.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": f"again-{mark}"})
        except httpx2.TransportError:
            return None
        return str(answer.json()["id"]) if answer.status_code == 202 else None

    job = Job(eventually(accepted, what="the job is accepted"), mark, 64, 8, caller)
    world.jobs.append(job)
    return job


def test_an_api_killed_at_any_message_of_a_submission_loses_and_doubles_no_job(
    world: World, caller: Caller, engine: FedEngine
) -> None:
    submit_again_and_again(world, caller, engine)
    world.api_proxy.count()
    submit_again_and_again(world, caller, engine).ended()
    for place, side in points(max(1, min(world.api_proxy.num_messages, 6)), "submission"):
        trap = Trap(world.api.pid, place, side)
        world.api_proxy.arm(trap)
        with ThreadPoolExecutor(1) as pool:
            submitting = pool.submit(submit_again_and_again, world, caller, engine)
            eventually(lambda trap=trap, submitting=submitting: trap.has_killed or submitting.done())  # type: ignore[misc]
            world.api_proxy.disarm()
            if trap.has_killed:
                world.restart_api()
            job = submitting.result()
        assert job.ended()["state"] == "completed"
        assert engine.scripted.marks().count(job.mark) >= 1


@pytest.mark.usefixtures("engine")
def test_a_service_worker_killed_at_any_message_tells_every_end_under_one_id(
    world: World, caller: Caller
) -> None:
    world.service_proxy.count()
    first = caller.submit()
    eventually(lambda: world.receiver.of(first.id), what="the end is told")
    for place, side in points(max(1, world.service_proxy.num_messages), "delivery"):
        trap = Trap(world.service.pid, place, side)
        world.service_proxy.arm(trap)
        jobs = [caller.submit() for _ in range(3)]
        for each in jobs:
            each.ended()
        eventually(
            lambda trap=trap, jobs=jobs: trap.has_killed or all(world.receiver.of(each.id) for each in jobs),  # type: ignore[misc]
            what="the service worker is killed, or done",
        )
        world.service_proxy.disarm()
        if trap.has_killed:
            world.restart_service()
        for each in jobs:
            eventually(lambda each=each: world.receiver.of(each.id), what="the end is told")  # type: ignore[misc]
