"""Ticks have a connection of their own, and pass rings on."""

import threading
from collections.abc import Callable

from sqlalchemy import text

from cli.stack.servers.valkey import EmbeddedValkey
from jobs.settings import DatabaseSettings, Settings
from local_engine import RunningEngine
from worker.inference.desk import Desk
from worker.inference.dispatcher import Dispatcher
from worker.inference.worker import InferenceWorker
from worker_support import Queue, running_worker, settings_for


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
        slots=worker.dispatcher._slots,
        desk=desk,
        pass_on=pass_on,
    )


def test_a_ring_is_passed_on_once_the_tick_is_over_whether_or_not_a_job_has_started(
    queue: Queue, synthetic: RunningEngine, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    settings = settings_for(database_settings, valkey.url, synthetic, claim_poll_seconds=60)
    num_passed_on = 0

    def pass_on() -> None:
        nonlocal num_passed_on
        num_passed_on += 1

    with running_worker(settings, queue.tokenizer) as worker:
        desk = Desk(settings, queue.sessions, stopping=threading.Event())
        dispatcher = dispatcher_at(desk, settings, worker, pass_on=pass_on)
        dispatcher.run_once()
        assert num_passed_on == 0, "nobody rang"
        dispatcher.ring()
        dispatcher.run_once()
        assert num_passed_on == 1
        with worker.dispatcher._ticking:  # a late tick of its own would start the job
            job_id = queue.submit("Say something. [[tokens=20]]")
            dispatcher.ring()
            dispatcher.run_once()
        assert queue.ended(job_id).state == "completed"
    assert num_passed_on == 2


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
