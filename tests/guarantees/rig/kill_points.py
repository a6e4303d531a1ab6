"""Scenarios in which the worker of the shared engine is killed at one of its messages to Postgres."""

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from rig.audit import audit
from rig.engines import Script
from rig.proxy import Side, Trap
from rig.waiting import eventually
from rig.world import World

IS_PROOF: Final = os.environ.get("LONGBATCH_PROVE") == "1"
SEED: Final = int(os.environ.get("LONGBATCH_SEED", "20261127"))
# Points of each scenario: a kill costs the start of a worker.
NUM_POINTS: Final = 3
HELD: Final = Script(length=24, hold_at=6)


@dataclass
class Play:
    """One performance of a scenario.

    Attributes:
        world: where it plays.
        asking: interactive requests that wait for their answers, whichever process is killed.
    """

    world: World
    asking: list[Future[str]] = field(default_factory=list)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))

    def until(self, look: Callable[[], object], *, what: str) -> None:
        """Wait until something has happened, or the worker is dead."""
        worker = self.world.engine.worker
        assert worker is not None
        eventually(lambda: bool(look()) or not worker.is_running, what=what)

    def until_all_have_ended(self) -> None:
        """Wait until no job is unfinished, or the worker is dead."""
        self.until(lambda: not self.world.rows.unfinished(), what="all jobs have ended")


@dataclass(frozen=True)
class Scenario:
    """What happens before the trap is set, and while it is."""

    before: Callable[[Play], None]
    act: Callable[[Play], None]


def nothing(_: Play) -> None:
    """Begin with an empty queue."""


def run_three(play: Play) -> None:
    """Let three jobs run until the engine holds them."""
    jobs = [play.world.caller.submit(HELD) for _ in range(3)]
    play.world.engine.scripted.holding(*(each.mark for each in jobs))


def perform(world: World, scenario: Scenario, trap: tuple[int, Side] | None) -> int:
    """Perform a scenario, start another worker if the trap has killed this one, and audit.

    Returns:
        How many messages the worker sent to Postgres.
    """
    engine, play = world.engine, Play(world)
    worker = engine.feed()
    scenario.before(play)
    engine.proxy.count()
    armed = None if trap is None else Trap(worker.pid, *trap)
    if armed is not None:
        engine.proxy.arm(armed)
    scenario.act(play)
    num_messages = engine.proxy.num_messages
    engine.proxy.disarm()
    if armed is not None and armed.has_killed:
        worker.wait()
    engine.feed()
    engine.scripted.release_all()
    for each in play.asking:
        assert each.result()
    play.pool.shutdown()
    audit(world)
    return num_messages


def points(num_messages: int, name: str) -> Iterator[tuple[int, Side]]:
    """Choose the points: spread over the messages, at random sides of them; all of them for a proof."""
    sides: list[Side] = ["before", "after"]
    if IS_PROOF:
        yield from ((place, side) for place in range(1, num_messages + 1) for side in sides)
        return
    chance = random.Random(f"{SEED} {name}")  # noqa: S311  # repeatable
    width = max(1.0, num_messages / NUM_POINTS)
    for number in range(NUM_POINTS):
        place = 1 + int(number * width + chance.random() * width)
        yield min(place, max(1, num_messages)), chance.choice(sides)
