"""The duties of a service worker: what each capability does again and again, and when."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from sqlalchemy.orm import Session, sessionmaker

from jobs.extractions.settling import FindFault
from jobs.prompts.counter import PromptCounter
from jobs.settings import Settings
from worker.turns import WorkRunner

# One document may be chunked and counted in this time, and one webhook exchanged.
LONGEST_STEP_SECONDS: Final = 180.0
# What one duty may wake: other duties, and the inference workers.
Woken = Literal[
    "prepare",
    "expire",
    "erasure",
    "retention",
    "validate",
    "batches",
    "summaries",
    "deliver",
    "traces",
    "inference",
]


@dataclass(frozen=True, slots=True)
class Duty:
    """Work that a service worker repeats.

    Attributes:
        name: of its thread. Duties of one name share it: each runs, even if an earlier one fails.
        run: does one bounded round; returns something true if it found work.
        interval: seconds between two rounds.
        wakes: what has work to do after a round that found work.
        rung_by: the doorbells that start a round at once.
        longest_step: seconds in which a round commits a transaction, or ends, while all is well.
    """

    name: str
    run: Callable[[], object]
    interval: float
    wakes: tuple[Woken, ...] = ()
    rung_by: tuple[str, ...] = ()
    longest_step: float = LONGEST_STEP_SECONDS


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What the duties of one service worker share.

    Attributes:
        lease: of a row that is counted, validated or planned.
        find_fault: returns what keeps a text from having a form.
        is_stopping: the worker ends, and so should the present round.
        wake: starts the next round of a duty at once.
    """

    settings: Settings
    sessions: sessionmaker[Session]
    counter: PromptCounter
    runner: WorkRunner
    lease: timedelta
    find_fault: FindFault
    is_stopping: Callable[[], bool]
    wake: Callable[[Woken], None]
