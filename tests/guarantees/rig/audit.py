"""The auditor: compares what callers, receivers, the engine and the database say of every accepted job."""

from collections.abc import Sequence

from standardwebhooks import Webhook

from rig.sql import Reserved
from rig.waiting import eventually
from rig.world import FedEngine, Job, World


def audit(world: World, *engines: FedEngine) -> None:
    """Wait until every accepted job has ended and is told, then check each of them; forget them.

    Args:
        world: whose jobs.
        engines: that may have run them, besides the shared one.
    """
    jobs, world.jobs = world.jobs, []
    fed = [world.engine, *engines]
    for job in jobs:
        _check_job(world, job)
    for job in jobs:
        _check_events(world, job)
    for each in fed:
        _check_engine(world, each, jobs)


def _check_job(world: World, job: Job) -> None:
    """Check its end and its only result."""
    ended = job.ended()
    assert ended["state"] in job.ends, (job.mark, ended)
    num_results = world.rows.num_results(job.id)
    if ended["state"] == "completed":
        assert num_results == 1
        assert job.output() == job.text, f"job {job.mark} has the answer of the oracle"
    else:
        assert num_results <= 1
        if num_results:  # what it said before it was stopped
            assert job.text.startswith(job.output())


def _check_events(world: World, job: Job) -> None:
    """Check that its end was told, under one id, with one body, and nothing else was."""
    state = job.now()["state"]
    events = [each for each in world.rows.events(job.id) if each[1] != "job.started"]
    assert [kind for _, kind in events] == [f"job.{state}"], f"job {job.mark}"
    if not job.is_told:
        return
    told = eventually(lambda: world.receiver.of(job.id), what=f"the end of job {job.mark} is told")
    assert {each.id for each in told} == {events[0][0]}
    assert len({each.body for each in told}) == 1
    assert told[0].event["type"] == f"job.{state}"
    webhook = Webhook(job.caller.webhook_secret)
    for each in told:
        webhook.verify(each.body, each.headers)


def _check_engine(world: World, fed: FedEngine, jobs: Sequence[Job]) -> None:
    """Check that it never held more than it has, and that nothing stays reserved."""
    engine = fed.scripted
    assert engine.most_requests <= engine.slots
    assert engine.most_blocks <= engine.blocks
    requests, blocks = fed.most_reserved
    assert requests <= engine.slots
    assert blocks <= engine.blocks
    accepted = {each.mark for each in jobs} | world.other_marks
    assert set(engine.marks()) <= accepted, "it was sent nothing but accepted jobs"
    eventually(
        lambda: world.rows.reserved(fed.name) == Reserved(0, 0) and not engine.running,
        what=f"nothing is reserved on {fed.name}",
    )
    engine.reset()
    fed.most_reserved = (0, 0)
