"""The Celery application: a doorbell's ear, and a process that starts and stops our own threads."""

import faulthandler
import logging
import os
import sys
import threading
import warnings
from typing import Any, Final, Protocol

import celery
from celery import bootsteps, signals

from jobs import doorbell
from jobs.settings import BrokerSettings

# After SIGTERM a process that still hangs shows where, and is gone. Above all graces, below a supervisor's.
_EXIT_SLACK_SECONDS: Final = 4.0
# What Celery may take to end once no job runs here any more.
_CELERY_EXIT_SECONDS: Final = 1.5


class Part(Protocol):
    """Threads that run as long as the worker does."""

    def start(self) -> None:
        """They run."""

    def begin_stop(self) -> None:
        """They take on nothing new; returns at once, also in a signal handler."""

    def stop(self) -> None:
        """They have ended."""


def make_app(settings: BrokerSettings) -> celery.Celery:
    """An application without tasks that never waits for its broker longer than the settings say."""
    seconds = settings.socket_timeout_seconds
    # Its advice against root is about unpickling, and nothing is unpickled here.
    warnings.filterwarnings("ignore", message=".*superuser privileges")
    app = celery.Celery("longbatch", broker=settings.url.get_secret_value(), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=False,  # Redis hands unacknowledged messages out again; jobs are kept in Postgres
        task_create_missing_queues=True,
        # Unlimited: at a limit Celery listens again only at its next tick, up to a second later.
        worker_prefetch_multiplier=0,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_channel_error_retry=True,  # a full or misconfigured broker is one that is away
        broker_connection_max_retries=None,  # for ever: jobs move without the broker
        broker_connection_timeout=seconds,
        broker_pool_limit=1,
        # Without these a frozen broker would block a publisher for ever.
        broker_transport_options={
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "max_retries": 0,
        },
    )
    return app


def publisher(app: celery.Celery) -> doorbell.Publish:
    """Sends tasks by name through this application, once."""

    def publish(task: str, queue: str) -> None:
        app.send_task(task, queue=queue, ignore_result=True, retry=False)

    return publish


def run_worker(app: celery.Celery, part: Part, *, queue: str, grace_seconds: float) -> int:
    """The process serves until SIGTERM; returns its exit code.

    The part is a step of Celery's worker and not of its consumer, which begins only when the broker answers.

    Args:
        app: with the queue's task.
        part: started before the consumer and stopped after it.
        queue: whose messages are heard.
        grace_seconds: how long the part may take to stop.
    """
    ending = _Ending(part, within_seconds=grace_seconds + _EXIT_SLACK_SECONDS)

    def begin_stop(**_: object) -> None:
        ending.begin()

    signals.setup_logging.connect(_keep_logging)
    signals.worker_shutting_down.connect(begin_stop)
    app.steps["worker"].add(_step(part, ending))
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
        faulthandler.cancel_dump_traceback_later()
    return int(worker.exitcode or 0)


class _Ending:
    """The part's end: begun by the signal, so that a consumer that hangs in its broker delays nothing."""

    def __init__(self, part: Part, *, within_seconds: float) -> None:
        self._part = part
        self._within_seconds = within_seconds
        self._lock = threading.Lock()
        self._has_ended = False

    def begin(self) -> None:
        """The part ends in a thread of its own, and the process soon after it, whatever Celery does."""
        # Shows where it hung.
        faulthandler.dump_traceback_later(self._within_seconds, exit=True)
        self._part.begin_stop()
        threading.Thread(target=self._finish_alone, name="ending", daemon=True).start()

    def finish(self) -> None:
        """The part has ended."""
        with self._lock:
            if not self._has_ended:
                self._part.stop()
                self._has_ended = True

    def _finish_alone(self) -> None:
        self.finish()
        threading.main_thread().join(_CELERY_EXIT_SECONDS)
        # Only the doorbell's ear is left, and it waits for a broker that does not answer.
        sys.stdout.flush()
        os._exit(0)


def _step(part: Part, ending: _Ending) -> type[bootsteps.StartStopStep]:
    class PartStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
        """Starts and stops the part with the worker."""

        requires = ("celery.worker.components:Pool",)

        def start(self, parent: Any) -> None:  # noqa: ANN401, ARG002  # celery's interface
            part.start()

        def stop(self, parent: Any) -> None:  # noqa: ANN401, ARG002
            ending.finish()

        def terminate(self, parent: Any) -> None:  # noqa: ANN401, ARG002
            part.begin_stop()
            ending.finish()

    return PartStep


def _keep_logging(**_: object) -> None:
    """Celery leaves logging as it is: its warnings go to standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
