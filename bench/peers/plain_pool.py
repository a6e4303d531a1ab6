"""A plain Celery pool: each task sends its prompt straight to Triton, as people do today.

Nothing about it is slow on purpose: prompts are tokenized before the clock starts, children connect before
their first task, results go to Redis unchanged. With a database it also claims a row and stores the result
in it, as anyone does who needs to know the fate of a job.
"""

import os
import time
from pathlib import Path

import celery
import psycopg
from celery import signals

from bench.peers.engine_client import EngineClient
from bench.peers.manifest import Item

TASK = "bench.generate"
READY = "bench.ready"
QUEUE = "plain-pool"
TABLE = """
    CREATE TABLE IF NOT EXISTS plain_pool_jobs (
        id bigint PRIMARY KEY, state text NOT NULL, output_ids int[], finished_at timestamptz
    )
"""


def make_app(broker_url: str) -> celery.Celery:
    """Create the application, with results in Redis and defaults for everything else."""
    app = celery.Celery("plain_pool", broker=broker_url, backend=broker_url, set_as_current=False)
    app.conf.update(task_default_queue=QUEUE, broker_connection_retry_on_startup=True)
    return app


class Child:
    """State that a pool process keeps between tasks."""

    def __init__(self) -> None:
        self._engine: EngineClient | None = None
        self._database: psycopg.Connection | None = None

    def connect(self) -> None:
        """Connect now, so that no task waits for a connection."""
        _, _ = self.engine, self.database

    @property
    def engine(self) -> EngineClient:
        """Connection to Triton."""
        if self._engine is None:
            self._engine = EngineClient(os.environ["PEER_TRITON"])
        return self._engine

    @property
    def database(self) -> psycopg.Connection | None:
        """Connection to Postgres; None: results are in Redis only."""
        if self._database is None and (url := os.environ.get("PEER_DATABASE")):
            self._database = psycopg.connect(url, autocommit=True)
        return self._database


app = make_app(os.environ.get("PEER_BROKER", "memory://"))
child = Child()


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]  # celery has no types
def _connect(**_: object) -> None:
    child.connect()


@app.task(name=READY)  # type: ignore[untyped-decorator]
def ready(seconds: float) -> int:
    """Stay busy, so that such tasks reach different processes; return the pid."""
    time.sleep(seconds)
    return os.getpid()


@app.task(name=TASK)  # type: ignore[untyped-decorator]
def generate(number: int, ids_file: str, limit: int) -> tuple[int, float, float]:
    """Generate an answer; return its token count, its first token's time and its end."""
    database = child.database
    if database is not None:
        claimed = "UPDATE plain_pool_jobs SET state = 'running' WHERE id = %s AND state = 'queued'"
        if database.execute(claimed, [number]).rowcount != 1:
            return 0, time.monotonic(), time.monotonic()
    generated, first_at = child.engine.ask(Item(Path(ids_file), limit).load(), limit, request_id=str(number))
    if database is not None:
        ended = (
            "UPDATE plain_pool_jobs SET state = 'done', output_ids = %s, finished_at = now() WHERE id = %s"
        )
        database.execute(ended, [generated, number])
    return len(generated), first_at, time.monotonic()
