"""Recovery to a point in time by the commands of docs/operations.md, after the data directory is lost."""

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy.orm import Session, sessionmaker

from bench.restore.recipe import Operator, Recipe
from bench.restore.run import archived
from cli.stack.ready import POSTGRES
from cli.stack.servers.postgres import EmbeddedPostgres
from jobs import database, lifecycle
from jobs.database import database_now, schema
from jobs.models import DEFAULT_TENANT, Job
from jobs.models.output import Result
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from support import claim_one, job_in, spec, submit_one


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    made = EmbeddedPostgres(tmp_path / POSTGRES)
    made.start()
    yield made
    made.remove()


@pytest.fixture
def sessions(server: EmbeddedPostgres) -> Iterator[sessionmaker[Session]]:
    """Sessions on this server's database."""
    engine = database.make_engine(DatabaseSettings(url=SecretStr(server.url)), name="restored")
    schema.upgrade(engine)
    yield database.make_sessions(engine)
    engine.dispose()


def start_again(server: EmbeddedPostgres, sessions: sessionmaker[Session]) -> None:
    server.start()
    sessions.kw["bind"].dispose()  # one that was used a moment ago is not tested before it is used again


def submit(sessions: sessionmaker[Session], num_tokens: int = 100) -> UUID:
    with sessions.begin() as session:
        return submit_one(session, spec(num_tokens)).id


def test_the_database_goes_back_to_the_moment_and_no_ended_job_runs_again(
    server: EmbeddedPostgres, sessions: sessionmaker[Session]
) -> None:
    recipe, operator = Recipe.read(), Operator(server.directory)
    operator.prepare()
    operator.run(recipe.archive, url=server.url)
    server.stop()
    start_again(server, sessions)
    with sessions.begin() as session:
        in_the_backup = job_in(session, JobState.COMPLETED).id
    operator.run(recipe.back_up, url=server.url)
    with sessions.begin() as session:
        completed = job_in(session, JobState.COMPLETED).id
        running = submit_one(session).id
        assert claim_one(session).lease.job_id == running
    waiting = submit(sessions, 10)
    with psycopg.connect(server.url, autocommit=True) as connection:
        (moment,) = connection.execute("SELECT clock_timestamp()::text").fetchone() or ("",)
        with sessions.begin() as session:
            lifecycle.cancel(session, waiting, tenant_id=DEFAULT_TENANT)
        later = submit(sessions)
        archived(connection)
    server.kill()
    shutil.rmtree(operator.cluster)

    operator.run(recipe.restore, moment=moment)
    start_again(server, sessions)
    operator.run(recipe.wait, url=server.url)
    with sessions.begin() as session:
        for ended in (in_the_backup, completed):
            assert session.get_one(Job, ended).state == JobState.COMPLETED
            assert session.get_one(Result, ended).output == "some text"
        assert session.get(Job, later) is None
        assert session.get_one(Job, waiting).state == JobState.QUEUED
        assert session.get_one(Job, running).state == JobState.RUNNING
        # Workers go on: what waited runs, then what ran when the moment came, and nothing else.
        assert claim_one(session).lease.job_id == waiting
        later_on = database_now(session) + timedelta(days=1)
        lifecycle.rescue(session, now=later_on, max_rescues=5)
        assert session.get_one(Job, running).state == JobState.QUEUED
    assert submit(sessions) != later
