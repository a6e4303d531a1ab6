"""Run one worker process, which exits within seconds of SIGTERM."""

import argparse
import sys
from typing import TYPE_CHECKING, Final

from jobs import doorbell, open_files, settings, telemetry
from jobs.errors import LongbatchError
from jobs.prompts.tokenizer import load_configured
from jobs.settings import Settings
from worker.celery_app import make_app, register_tasks, run_worker
from worker.doorbell import WorkerDoorbell
from worker.metrics.process import ProcessMetrics

if TYPE_CHECKING:
    from worker.inference.worker import InferenceWorker
    from worker.service import ServiceWorker

    WorkerKind = type[InferenceWorker | ServiceWorker]

# On top of the grace for running jobs: stop their streams, wait for them to end, release the jobs.
_RELEASE_SECONDS: Final = 2.5


def chosen_role() -> str:
    """Read the role from the command line."""
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    parser.add_argument("role", choices=[doorbell.INFERENCE, doorbell.SERVICE])
    role: str = parser.parse_args().role
    return role


def load(role: str) -> "WorkerKind":
    """Import the worker of this role, without the engine's or the duties' modules that the other needs."""
    if role == doorbell.INFERENCE:
        from worker.inference.worker import InferenceWorker

        return InferenceWorker
    from worker.service import ServiceWorker

    return ServiceWorker


def run(role: str, kind: "WorkerKind") -> int:
    """Run the worker until SIGTERM and return its exit code."""
    try:
        return _serve(role, kind, settings.load())
    except (ValueError, LongbatchError) as error:
        print(f"the worker cannot start: {error}", file=sys.stderr)  # noqa: T201  # there is no log yet
        return 2


def _serve(role: str, kind: "WorkerKind", configured: Settings) -> int:
    metrics = ProcessMetrics()
    telemetry.configure(on_event=metrics.events.count)
    num_files = open_files.of_inference_worker if role == doorbell.INFERENCE else open_files.of_service_worker
    open_files.raise_for(role, needed=num_files(configured))
    app = make_app(configured.broker)
    broker = doorbell.connect(
        configured.broker.url.get_secret_value(), socket_timeout=configured.broker.socket_timeout_seconds
    )
    threads = kind(configured, load_configured(configured.tokenizer), WorkerDoorbell(broker, app), metrics)
    register_tasks(app, role, threads.on_ring)
    metrics.serve(configured.metrics)
    return run_worker(
        app,
        threads,
        queue=role,
        grace_seconds=configured.jobs.shutdown_grace_seconds + _RELEASE_SECONDS,
    )
