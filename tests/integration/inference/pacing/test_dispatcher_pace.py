"""Ticks wait for ends that are about to come, and for nothing that may follow them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import database
from jobs.ids import uuid7
from jobs.prompts.tokenizer import Tokenizer
from jobs.scheduling.claims import ClaimResult
from jobs.settings import DatabaseSettings, Settings
from jobs.states import FinishReason
from jobs.transitions import Lease
from local_engine import RunningEngine
from support import PATIENCE, eventually, output_of
from worker.heartbeat import Heartbeat
from worker.inference.desk import Desk
from worker.inference.dispatcher import Dispatcher
from worker.inference.execute import Runner
from worker.inference.leases import LeaseKeeper, RunningJob
from worker.inference.monitor import EngineMonitor
from worker.inference.outcome import Finished, RunEnd
from worker.inference.worker import InferenceWorker
from worker_support import Queue, running_worker, settings_for

STOPPED = RunEnd(Finished(FinishReason.STOP), engine_is_done=True)


class NotedDesk(Desk):
    """A desk that notes for what a tick would wait, without waiting.

    Attributes:
        on_tick: called with a tick's policy.
        during: called at the end of a tick.
    """

    def __init__(self, settings: Settings, sessions: sessionmaker[Session]) -> None:
        super().__init__(settings, sessions, stopping=threading.Event())
        self.waits: list[tuple[int, float]] = []
        self.on_tick: Callable[[object], object] = lambda _: None
        self.during: Callable[[], object] = lambda: None

    def wait_for(self, num_ends: int, *, seconds: float) -> bool:
        self.waits.append((num_ends, seconds))
        return False

    def tick(self, *given: object, **named: object) -> ClaimResult:
        self.on_tick(given[0])
        result = super().tick(*given, **named)  # type: ignore[arg-type]  # as it came
        self.during()
        return result


@dataclass
class Pace:
    """A dispatcher without an engine, which ticks when it is told to, by a clock that stands still."""

    dispatcher: Dispatcher
    desk: NotedDesk
    keeper: LeaseKeeper
    sessions: sessionmaker[Session]
    now: float = 1000.0

    def hold(self) -> RunningJob:
        """A job streams."""
        running = RunningJob(Lease(uuid7(), uuid7()), float("inf"))
        self.keeper.hold(running)
        return running

    def end(self) -> None:
        """A run has ended. Its lease is lost, so the tick stores nothing."""
        self.desk.hand_in(RunningJob(Lease(uuid7(), uuid7()), float("inf")), STOPPED, output_of("x"))

    def waited(self) -> list[tuple[int, float]]:
        """Tick; what it waited for."""
        self.desk.waits.clear()
        self.dispatcher.run_once()
        return self.desk.waits.copy()


@pytest.fixture
def pace(
    database_settings: DatabaseSettings,
    sessions: sessionmaker[Session],  # noqa: ARG001  # the database is empty
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
) -> Iterator[Pace]:
    made = database.make_engine(database_settings, pool_size=1)
    own = database.make_sessions(made)
    settings = feeding()
    keeper = LeaseKeeper(own, settings.jobs)
    desk = NotedDesk(settings, own)
    heartbeat = Heartbeat("inference", own, max_rescues=2, engine_name=settings.engine.name)
    monitor = EngineMonitor(settings, own, tokenizer, heartbeat)  # it never asks: there is no engine
    nobody = cast("Runner", None)  # without an engine nothing runs
    dispatcher = Dispatcher(
        settings, monitor=monitor, keeper=keeper, runner=nobody, desk=desk, clock=lambda: found.now
    )
    found = Pace(dispatcher, desk, keeper, own)
    yield found
    made.dispose()


def test_a_tick_soon_after_another_waits_for_as_many_ends_as_there_are_streams(pace: Pace) -> None:
    streaming = [pace.hold() for _ in range(3)]
    pace.end()
    assert pace.waited() == [], "none was before it"
    pace.end()
    assert [num for num, _ in pace.waited()] == [3]
    streaming[0].is_ending = True
    pace.end()
    assert [num for num, _ in pace.waited()] == [2]
    pace.now += 0.011
    pace.end()
    assert pace.waited() == [], "the last tick was long ago"


def test_a_tick_waits_neither_without_an_end_nor_without_a_stream(pace: Pace) -> None:
    running = pace.hold()
    assert [pace.waited(), pace.waited()] == [[], []]
    pace.keeper.drop(running)
    pace.end()
    assert pace.waited() == []


def test_ticks_that_take_long_wait_longer_and_later_but_no_longer_than_half_of_that(pace: Pace) -> None:
    pace.hold()

    def take_long() -> None:
        pace.now += 0.02

    pace.desk.during = take_long
    pace.end()
    assert pace.waited() == []
    pace.now += 0.015  # more than the 10 ms that count for quick ticks
    pace.end()
    ((_, first),) = pace.waited()
    pace.end()
    ((_, second),) = pace.waited()
    assert 0.0019 < second <= first < 0.0101, "from a tenth of the last tick to half of it; less if none came"


def test_waiting_for_ends_is_over_once_all_have_come(
    sessions: sessionmaker[Session], feeding: Callable[..., Settings]
) -> None:
    desk = Desk(feeding(), sessions, stopping=threading.Event())
    assert not desk.wait_for(1, seconds=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(desk.wait_for, 2, seconds=10 * PATIENCE)
        eventually(lambda: desk._awaited == 2)
        for _ in range(2):
            desk.hand_in(RunningJob(Lease(uuid7(), uuid7()), float("inf")), STOPPED, output_of("x"))
        assert waiting.result(PATIENCE)


def dispatcher_at(
    desk: Desk,
    settings: Settings,
    worker: InferenceWorker,
    *,
    pass_on: Callable[[], object] = lambda: None,
) -> Dispatcher:
    """A dispatcher of the worker's engine that ticks only when it is told to."""
    return Dispatcher(
        settings,
        monitor=worker.monitor,
        keeper=worker.keeper,
        runner=worker.dispatcher._runner,
        desk=desk,
        pass_on=pass_on,
    )


def test_a_ring_is_passed_on_by_another_thread_if_jobs_have_started_whose_requests_come_first(
    queue: Queue, synthetic: RunningEngine, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    settings = settings_for(database_settings, valkey.url, synthetic, claim_poll_seconds=60)
    passed_on: list[threading.Thread] = []
    with running_worker(settings, queue.tokenizer) as worker:
        dispatcher = dispatcher_at(
            Desk(settings, queue.sessions, stopping=threading.Event()),
            settings,
            worker,
            pass_on=lambda: passed_on.append(threading.current_thread()),
        )
        dispatcher.ring()
        dispatcher.run_once()
        assert passed_on == [threading.current_thread()], "nothing has started"
        with worker.dispatcher._ticking:  # a late tick of its own would start the job
            job_id = queue.submit("Say something. [[tokens=20]]")
            dispatcher.ring()
            dispatcher.run_once()
        assert queue.ended(job_id).state == "completed"
        eventually(lambda: len(passed_on) == 2)
    assert passed_on[1].name == "connections"


def test_ticks_have_a_connection_of_their_own(
    queue: Queue, synthetic: RunningEngine, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    settings = settings_for(database_settings, valkey.url, synthetic)
    found = text("SELECT pid FROM pg_stat_activity WHERE application_name = 'longbatch-ticks'")
    pids = []
    with running_worker(settings, queue.tokenizer):
        for words in ("something", "more"):
            assert queue.ended(queue.submit(f"Say {words}. [[tokens=20]]")).state == "completed"
            with queue.sessions() as session:
                pids.append(session.scalars(found).all())
    assert len(pids[0]) == 1
    assert pids[0] == pids[1]


@pytest.mark.parametrize("waits", [False, True])
def test_ends_are_stored_before_the_next_look_at_a_queue_that_was_empty(
    queue: Queue,
    synthetic: RunningEngine,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    *,
    waits: bool,
) -> None:
    settings = settings_for(database_settings, valkey.url, synthetic, claim_poll_seconds=60)
    engine = settings.engine.model_copy(update={"reuses_prefix": False})
    settings = settings.model_copy(update={"engine": engine})
    desk = NotedDesk(settings, queue.sessions)
    with running_worker(settings, queue.tokenizer) as worker:
        dispatcher = dispatcher_at(desk, settings, worker)
        if waits:
            long = f"{'word ' * 4000}[[tokens=20]]"  # it waits for others of its kind to end
            for number in range(8):
                queue.submit(f"{number} {long}")
        dispatcher._runner.prefetcher.refresh()
        looks: list[bool] = []
        desk.on_tick = lambda policy: looks.append(policy is not None)
        desk.hand_in(RunningJob(Lease(uuid7(), uuid7()), float("inf")), STOPPED, output_of("x"))
        dispatcher.loop.answer_wakes()
        dispatcher.run_once()
        assert looks == [waits]
        if not waits:
            assert (dispatcher.loop._due_within or 1) < 0.01, "it looks soon"
        dispatcher.ring()
        desk.hand_in(RunningJob(Lease(uuid7(), uuid7()), float("inf")), STOPPED, output_of("x"))
        dispatcher.run_once()
        assert looks == [waits, True], "a job has come"
