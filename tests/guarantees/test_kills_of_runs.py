"""A worker is killed at its messages to Postgres while jobs start, end, are cancelled and handed back.

Each scenario counts its messages first and then kills at some of them; LONGBATCH_PROVE=1 kills at all.
"""

import signal

import pytest

from rig.kill_points import IS_PROOF, Play, Scenario, nothing, perform, points, run_three
from rig.world import World

pytestmark = pytest.mark.timeout(36_000 if IS_PROOF else 600)


def claim(play: Play) -> None:
    for _ in range(6):
        play.world.caller.submit()
    play.until_all_have_ended()


def end(play: Play) -> None:
    play.world.engine.scripted.release_all()
    play.until_all_have_ended()


def cancel(play: Play) -> None:
    world = play.world
    world.jobs[:] = [each.ending("cancelled") for each in world.jobs]
    for each in world.jobs:
        each.cancel()
    play.until_all_have_ended()


def shut_down(play: Play) -> None:
    worker = play.world.engine.worker
    assert worker is not None
    worker.send(signal.SIGTERM)
    worker.wait()


SCENARIOS = {
    "claim": Scenario(nothing, claim),
    "end": Scenario(run_three, end),
    "cancel": Scenario(run_three, cancel),
    "shutdown": Scenario(run_three, shut_down),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_worker_killed_at_any_message_loses_and_doubles_nothing(world: World, name: str) -> None:
    num_messages = perform(world, SCENARIOS[name], None)
    assert num_messages
    for point in points(num_messages, name):
        perform(world, SCENARIOS[name], point)
