"""What tests of the workers need: workers in this process and as their own, and the queue they serve."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from pydantic import SecretStr
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

import zygote
from cli.stack.ports import LOOPBACK
from jobs import checkpoints, doorbell, lifecycle, submission
from jobs.database import database_now, transaction
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, Job, Reservation, Result
from jobs.prompts import messages
from jobs.prompts.counter import PromptCounter
from jobs.prompts.store import NewText
from jobs.prompts.tokenizer import Tokenizer, unpack_ids
from jobs.settings import (
    BrokerSettings,
    DatabaseSettings,
    EngineSettings,
    JobSettings,
    Settings,
    TritonSettings,
)
from jobs.states import TERMINAL
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec
from local_engine import RunningEngine
from support import CAPACITY, PATIENCE, eventually
from worker.celery_app import make_app
from worker.doorbell import WorkerDoorbell
from worker.inference.refusals import Patience
from worker.inference.worker import InferenceWorker
from worker.metrics.process import ProcessMetrics

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE = "engine-a"
MODEL = "test-model"
TIME_SCALE = 20.0
# A worker that has stopped leaves none of these behind.
OWN_THREADS = (
    "slot",
    "leases",
    "engine-monitor",
    "dispatcher",
    "prefetch",
    "live-output",
    "doorbell-sender",
    "heartbeat",
)
_in_this_process: list[InferenceWorker] = []
# While no engine has registered: what the local engine has.
# The text that the synthetic engine says over and over, from anywhere in it.
SAID = "The load runs through the engine and every word of this line is as good as any other one here. "


def settings_for(
    database: DatabaseSettings, broker_url: str, engine: RunningEngine, **jobs: float
) -> Settings:
    """Of a worker that feeds this engine, with these settings of jobs."""
    launch = engine.launch
    quick: dict[str, float] = {"retry_backoff_seconds": 0.2, "shutdown_grace_seconds": 0.2}
    return Settings(
        database=database,
        broker=BrokerSettings(url=SecretStr(broker_url), socket_timeout_seconds=1),
        triton=TritonSettings(
            url=f"{LOOPBACK}:{launch.grpc_port}",
            metrics_url=f"http://{LOOPBACK}:{launch.metrics_port}/metrics",
        ),
        engine=EngineSettings(name=ENGINE, model=MODEL, time_scale=TIME_SCALE),
        jobs=JobSettings(**(quick | jobs)),
    )


@contextmanager
def running_worker(
    settings: Settings,
    tokenizer: Tokenizer,
    *,
    is_ready: bool = True,
    patience: Patience | None = None,
    metrics: ProcessMetrics | None = None,
) -> Iterator[InferenceWorker]:
    """An inference worker in this process, which has found its engine unless `is_ready` is false."""
    app = make_app(settings.broker)
    broker = doorbell.connect(settings.broker.url.get_secret_value(), socket_timeout=1)
    worker = InferenceWorker(settings, tokenizer, WorkerDoorbell(broker, app), metrics, patience=patience)
    _in_this_process.append(worker)
    worker.start()
    try:
        if is_ready:
            eventually(lambda: worker.monitor.model)
        yield worker
    finally:
        worker.stop()
        broker.close()
        _in_this_process.remove(worker)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith(OWN_THREADS)]
    assert _in_this_process or not left


@dataclass
class WorkerProcess:
    """`python -m worker ROLE`, with its output in a file."""

    role: str
    settings: Settings
    log: Path
    process: zygote.ForkedProcess = field(init=False)

    def __post_init__(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_")}
        if "LONGBATCH_CACHE_DIR" in os.environ:
            inherited["LONGBATCH_CACHE_DIR"] = os.environ["LONGBATCH_CACHE_DIR"]
        with self.log.open("ab") as output:
            self.process = zygote.start(
                ("worker", self.role),
                env=inherited | _environment(self.settings),
                stdout=output,
                cwd=REPOSITORY,
            )

    def said(self, event: str) -> bool:
        return f'"{event}"' in self.log.read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Queue:
    """The queue as its callers see it."""

    sessions: sessionmaker[Session]
    tokenizer: Tokenizer

    def submit(
        self,
        text: str,
        *,
        max_tokens: int = 64,
        is_counted: bool = True,
        tenant_id: UUID = DEFAULT_TENANT,
        task: str = "generate",
        model: str = MODEL,
        **fields: object,
    ) -> UUID:
        """A job with this text as its user message."""
        canonical = messages.canonical([messages.Message("user", text)])
        counted = PromptCounter(self.tokenizer).count_prompt(canonical) if is_counted else None
        spec = JobSpec(
            text=NewText(canonical, counted),
            task=task,
            model=model,
            max_tokens=max_tokens,
            **fields,  # type: ignore[arg-type]  # named by the caller
        )
        with transaction(self.sessions) as session:
            (job,) = submission.submit(session, [spec], Submitter(tenant_id, CAPACITY))
            return job.id

    def job(self, job_id: UUID) -> Job:
        with self.sessions() as session:
            return session.get_one(Job, job_id)

    def result(self, job_id: UUID) -> Result | None:
        with self.sessions() as session:
            return session.get(Result, job_id)

    def result_ids(self, job_id: UUID) -> list[int]:
        """The token ids of its answer."""
        found = self.result(job_id)
        assert found is not None
        ids: list[int] = unpack_ids(found.output_ids).tolist()
        return ids

    def saved_ids(self, job_id: UUID) -> list[int]:
        """Those of its checkpoint; none where there is none."""
        with self.sessions() as session:
            found = checkpoints.load(session, job_id)
            return [] if found is None else list(found.ids)

    def when(self, job_id: UUID, condition: Callable[..., object], *, timeout: float = PATIENCE) -> Job:
        """The job once the condition holds."""

        def look() -> Job | None:
            job = self.job(job_id)
            return job if condition(job) else None

        found = eventually(look, timeout=timeout)
        assert found is not None
        return found

    def ended(self, job_id: UUID, *, timeout: float = PATIENCE) -> Job:
        return self.when(job_id, lambda job: job.state in TERMINAL, timeout=timeout)

    def streaming(self, job_id: UUID) -> Job:
        return self.when(job_id, lambda job: job.state == "running" and job.completion_tokens > 0)

    def rescue(self) -> None:
        """Let every lease end now, as a service worker finds it once a worker has died."""
        with transaction(self.sessions) as session:
            running = update(Job).where(Job.state == "running")
            session.execute(running.values(lease_expires_at=database_now(session)))
        with transaction(self.sessions) as session:
            lifecycle.rescue(session, now=database_now(session), max_rescues=2)

    def reservations(self) -> list[Reservation]:
        with self.sessions() as session:
            return list(session.scalars(select(Reservation)))

    def add_draining(self) -> None:
        """A reservation whose job has left the engine, which may still generate for it."""
        with transaction(self.sessions) as session:
            session.add(
                Reservation(
                    lease_id=uuid7(),
                    engine_name=ENGINE,
                    job_id=uuid7(),
                    blocks=5,
                    output_tokens=64,
                    state="draining",
                    draining_since=database_now(session),
                )
            )


def _environment(settings: Settings) -> dict[str, str]:
    """The variables that make these settings."""
    found: dict[str, str] = {}
    for group, values in settings.model_dump(exclude_defaults=True).items():
        for name, value in values.items():
            secret = value.get_secret_value() if isinstance(value, SecretStr) else value
            text = str(secret) if not isinstance(secret, tuple) else '["' + '","'.join(secret) + '"]'
            found[f"LONGBATCH_{group.upper()}__{name.upper()}"] = text
    return found
