"""A database that dies under running jobs, and the connections to it."""

from contextlib import ExitStack
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy import func, select

from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import database
from jobs.database import schema
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings
from local_engine import RunningEngine
from support import eventually
from worker_support import Queue, running_worker, settings_for


def test_streams_go_on_while_the_database_restarts(
    tmp_path: Path, valkey: EmbeddedValkey, synthetic: RunningEngine, tokenizer: Tokenizer
) -> None:
    postgres = EmbeddedPostgres(tmp_path / "postgres")
    postgres.start()
    found = DatabaseSettings(url=SecretStr(postgres.url))
    engine = database.make_engine(found, name="tests")
    try:
        schema.upgrade(engine)
        queue = Queue(database.make_sessions(engine), tokenizer)
        settings = settings_for(found, valkey.url, synthetic)
        with running_worker(settings, tokenizer) as worker:
            # The first four end while the database is away, the others start after it.
            job_ids = [queue.submit(f"Job {number}.", max_tokens=2000) for number in range(6)]
            for job_id in job_ids[:4]:
                queue.streaming(job_id)
            postgres.kill()
            eventually(lambda: all(run.is_ending for run in worker.keeper.runs()))
            assert len(worker.keeper.runs()) == 4
            postgres.start()
            ended = [queue.ended(job_id) for job_id in job_ids]
            eventually(lambda: not queue.reservations())
    finally:
        engine.dispose()
        postgres.stop()
    told = [(job.state, job.completion_tokens, job.attempt, job.num_rescues) for job in ended]
    assert told == [("completed", 2000, 0, 0)] * 6


def test_a_pool_gives_the_connection_that_was_used_last(database_settings: DatabaseSettings) -> None:
    made = database.make_engine(database_settings, pool_size=3)
    sessions = database.make_sessions(made)
    process = select(func.pg_backend_pid())
    try:
        with ExitStack() as together:
            opened = [together.enter_context(sessions()) for _ in range(3)]
            assert len({session.scalar(process) for session in opened}) == 3
        one_after_another = set()
        for _ in range(4):
            with database.transaction(sessions) as session:
                one_after_another.add(session.scalar(process))
        assert len(one_after_another) == 1
    finally:
        made.dispose()
