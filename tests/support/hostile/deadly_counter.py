"""Workers that one prompt kills: each is a process of its own.

They stand here, not beside their tests, because such a process imports what it runs by its name. A copy
of the tests' process would be no substitute: it owns the locks that other threads hold at that moment.
"""

import multiprocessing
import os
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection

from jobs import database
from jobs.preparation import Counting
from jobs.prompts.store import CountedPrompt
from jobs.settings import DatabaseSettings
from support import CAPACITY, WordCounter, runner_of
from worker.turns import WorkRunner


class DeadlyCounter(WordCounter):
    """Ends the process at a deadly prompt, as the kernel does when memory is gone."""

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        if "deadly" in canonical:
            os._exit(9)
        return super().count_prompt(canonical, limit=limit)


COUNTING = Counting(DeadlyCounter(), CAPACITY, timedelta(milliseconds=1))


def _runner(settings: DatabaseSettings) -> WorkRunner:
    return runner_of(database.make_sessions(database.make_engine(settings, pool_size=2)))


def count_one_by_one(settings: DatabaseSettings) -> None:
    """Count up to a hundred prompts, each in a call of its own."""
    _runner(settings).run_some(COUNTING, limit=100)


def count_in_sets(settings: DatabaseSettings) -> None:
    """Count what waits, several prompts in a call, until nothing does."""
    runner = _runner(settings)
    while runner.run_set(COUNTING):
        pass


def exits_of_four(work: Callable[[DatabaseSettings], None], settings: DatabaseSettings) -> list[int | None]:
    """Run the work in four processes, one after another, and return their exit codes.

    They are forks of one new process without threads: it imports what they run, for a second of CPU, once.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_four, args=(work, settings, theirs))
    process.start()
    theirs.close()
    exits: list[int | None] = ours.recv()
    process.join()
    return exits


def _run_four(
    work: Callable[[DatabaseSettings], None],
    settings: DatabaseSettings,
    connection: "Connection[list[int | None], object]",
) -> None:
    exits = []
    for _ in range(4):
        process = multiprocessing.get_context("fork").Process(target=work, args=(settings,))
        process.start()
        process.join(60)
        process.kill()  # if it still runs
        process.join()
        exits.append(process.exitcode)
    connection.send(exits)
