"""The Celery application: it consumes the doorbell's messages and starts and stops our own threads."""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import celery
from celery import bootsteps, signals

from jobs import doorbell, liveness
from jobs.settings import BrokerSettings
from worker.threads import WorkerThreads

# A process that hangs after SIGTERM dumps its stacks and exits. Above every grace, below a supervisor's.
_EXIT_SLACK_SECONDS: Final = 4.0
# How long Celery may take to exit once no job runs in this process.
_CELERY_EXIT_SECONDS: Final = 1.5


def make_app(settings: BrokerSettings) -> celery.Celery:
    """Create an application without tasks. It waits for its broker no longer than the settings allow."""
    # Celery warns against root because of unpickling, and nothing is unpickled here.
    warnings.filterwarnings("ignore", message=".*superuser privileges")
    app = celery.Celery("longbatch", broker=settings.url.get_secret_value(), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_ignore_result=True,
        # Unlimited: at a limit Celery reads again only at its next tick, up to a second later.
        worker_prefetch_multiplier=0,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_channel_error_retry=True,  # treat a full or misconfigured broker like one that is down
        broker_connection_max_retries=None,  # retry forever: jobs move without the broker
        **doorbell.celery_settings(settings),
    )
    return app


def register_tasks(app: celery.Celery, queue: str, on_ring: Callable[[str], None]) -> None:
    """Register the tasks of this queue's doorbells, which carry no payload and only wake the worker.

    Args:
        app: the worker's application.
        queue: the queue that it consumes.
        on_ring: called with the doorbell's name for each message; must be quick.
    """
    for name in (name for name, of in doorbell.QUEUES.items() if of == queue):
        app.task(name=doorbell.WAKE_TASKS[name], ignore_result=True, shared=False)(_ringing(name, on_ring))


def _ringing(name: str, on_ring: Callable[[str], None]) -> Callable[[], None]:
    def wake() -> None:
        on_ring(name)

    return wake


def run_worker(app: celery.Celery, threads: WorkerThreads, *, queue: str, grace_seconds: float) -> int:
    """Serve until SIGTERM and return the process's exit code.

    The threads are a step of Celery's worker, not of its consumer, which starts only once the broker answers.

    Args:
        app: the application, with the queue's tasks registered.
        threads: started before the consumer and stopped after it.
        queue: the queue to consume.
        grace_seconds: how long the threads may take to stop.
    """
    ending = _Ending(threads, within_seconds=grace_seconds + _EXIT_SLACK_SECONDS)

    def begin_stop(**_: object) -> None:
        ending.begin()

    signals.setup_logging.connect(_keep_logging)
    signals.worker_shutting_down.connect(begin_stop)
    app.steps["worker"].add(_step(threads, ending))
    worker = app.Worker(
        queues=[queue],
        pool="threads",
        concurrency=1,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        optimization="fair",
    )
    try:
        worker.start()
    finally:
        liveness.disarm_hard_exit()
    return int(worker.exitcode or 0) or liveness.exit_code()


class _Ending:
    """The shutdown, started by the signal so that a consumer stuck in its broker delays nothing."""

    def __init__(self, threads: WorkerThreads, *, within_seconds: float) -> None:
        self._threads = threads
        self._within_seconds = within_seconds
        self._lock = threading.Lock()
        self._has_ended = False

    def begin(self) -> None:
        """Stop the threads from one of its own, then exit soon after, whatever Celery does."""
        liveness.arm_hard_exit(self._within_seconds)
        self._threads.begin_stop()
        threading.Thread(target=self._finish_alone, name="ending", daemon=True).start()

    def finish(self) -> None:
        """Stop the threads once, and wait until they have ended."""
        with self._lock:
            if not self._has_ended:
                self._threads.stop()
                self._has_ended = True

    def _finish_alone(self) -> None:
        self.finish()
        threading.main_thread().join(_CELERY_EXIT_SECONDS)
        # Only Celery's consumer is left, waiting for a broker that does not answer.
        with suppress(OSError, ValueError):  # a full disk, or a closed stream
            sys.stdout.flush()
        os._exit(liveness.exit_code())


def _step(threads: WorkerThreads, ending: _Ending) -> type[bootsteps.StartStopStep]:
    class ThreadsStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
        """A step of Celery's worker that starts and stops the threads."""

        requires = ("celery.worker.components:Pool",)

        def start(self, parent: Any) -> None:  # noqa: ANN401, ARG002  # celery's interface
            threads.start()

        def stop(self, parent: Any) -> None:  # noqa: ANN401, ARG002
            ending.finish()

        def terminate(self, parent: Any) -> None:  # noqa: ANN401, ARG002
            threads.begin_stop()
            ending.finish()

    return ThreadsStep


def _keep_logging(**_: object) -> None:
    """Send warnings to standard error, and keep Celery from configuring logging."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
