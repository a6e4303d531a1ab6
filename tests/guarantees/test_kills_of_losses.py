"""A worker is killed at its messages to Postgres while engines, prompts and Postgres fail around it."""

import pytest

from rig.engines import Script
from rig.kill_points import IS_PROOF, Play, Scenario, nothing, perform, points, run_three
from rig.world import SLOTS, World

pytestmark = pytest.mark.timeout(36_000 if IS_PROOF else 600)


def fill(play: Play) -> None:
    """Fill the engine with jobs that have generated enough to make room for others."""
    caller, engine = play.world.tenant("preempting"), play.world.engine
    jobs = [caller.submit(Script(length=320, hold_at=300), max_tokens=400) for _ in range(SLOTS)]
    engine.scripted.holding(*(each.mark for each in jobs))


def preempt(play: Play) -> None:
    play.asking.append(play.pool.submit(play.world.caller.chat))
    play.until(play.asking[0].done, what="the interactive request is answered")


def poison(play: Play) -> None:
    caller = play.world.caller
    caller.submit(Script(kills=True), ends=("failed",))
    # In flight at every death, one of them may be the last that it is allowed.
    for _ in range(2):
        caller.submit(ends=("completed", "failed"))
    play.until_all_have_ended()


def lose_engine(play: Play) -> None:
    engine = play.world.engine.scripted
    marks = [each.mark for each in play.world.jobs]
    engine.die()
    play.until(lambda: engine.are_held(*marks), what="the jobs run again")


def fail_over(play: Play) -> None:
    play.world.engine.proxy.cut()
    play.world.engine.scripted.release_all()
    play.until_all_have_ended()


SCENARIOS = {
    "preempt": Scenario(fill, preempt),
    "poison": Scenario(nothing, poison),
    "engine-loss": Scenario(run_three, lose_engine),
    "failover": Scenario(run_three, fail_over),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_worker_killed_amid_other_faults_loses_and_doubles_nothing(world: World, name: str) -> None:
    num_messages = perform(world, SCENARIOS[name], None)
    assert num_messages
    for point in points(num_messages, name):
        perform(world, SCENARIOS[name], point)
