"""What a job's life leaves behind in its table: few dead rows, and those are removed soon."""

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

import ending
from cli.stack.servers.postgres import EmbeddedPostgres
from jobs import deletion, leases
from jobs.database import database_now, transaction
from jobs.leases import JobProgress
from jobs.models import Base
from jobs.scheduling import tick
from jobs.starting import Claim
from support import ENGINE, POLICY, eventually, output_of, register_engine, submit_one

# The first threshold, 5,000 dead rows, is several times what this many jobs leave.
NUM_JOBS = 240


def test_tables_are_stored_as_their_models_say(session: Session) -> None:
    query = text(
        "SELECT relname, reloptions FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = current_schema()::regnamespace AND reloptions IS NOT NULL"
    )
    stored = {name: dict(each.split("=") for each in options) for name, options in session.execute(query)}
    for name, table in Base.metadata.tables.items():
        wanted = table.dialect_options["postgresql"]["with"] or {}
        found = stored.get(name, {})
        assert {key: found.get(key) for key in wanted} == {key: str(value) for key, value in wanted.items()}


def claimed(session: Session) -> list[Claim]:
    return list(tick.tick(session, ENGINE, POLICY, ended=[]).claims)


def end(session: Session, *running: Claim) -> None:
    ended = [ending.completed(each.lease, output_of("x")) for each in running]
    assert len(tick.tick(session, ENGINE, None, ended=ended).stored) == len(running)


def test_while_a_job_runs_its_row_changes_on_its_page_and_in_no_index(session: Session) -> None:
    session.execute(text("TRUNCATE jobs CASCADE"))  # until the rollback: a page with room
    counted = text(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'jobs'::regclass"
    )

    def counts() -> tuple[int, int]:
        updates, hot = session.execute(counted).one()
        return updates, hot

    # Earlier transactions of the connection count until Postgres has noted them.
    updates_before, hot_before = counts()

    def changes() -> tuple[int, int]:
        """Updates so far, and how many of them left the indexes alone."""
        updates, hot = counts()
        return updates - updates_before, hot - hot_before

    register_engine(session)
    submit_one(session)
    (claim,) = claimed(session)
    assert changes() == (1, 0), "it is no longer queued"
    for number in range(1, 4):
        leases.report_all(session, [JobProgress(claim.lease, number, timedelta(0))])
        leases.renew(session, [claim.lease], lease=timedelta(minutes=1))
        ending.checkpoint(session, claim.lease, output_of("y", number))
    assert changes() == (10, 9)
    end(session, claim)
    assert changes() == (11, 9), "it no longer runs"


@pytest.fixture
def looked_after(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Autovacuum looks every second."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum_naptime = 1")
        connection.execute("SELECT pg_reload_conf()")
        yield
        connection.execute("ALTER SYSTEM RESET autovacuum_naptime")
        connection.execute("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("looked_after")
def test_what_a_few_hundred_jobs_leave_is_vacuumed(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("VACUUM jobs"))  # of what tests before left
    vacuumed = text("SELECT autovacuum_count FROM pg_stat_user_tables WHERE relid = 'jobs'::regclass")
    with transaction(sessions) as session:
        register_engine(session)
        before = session.scalar(vacuumed)
    for _ in range(NUM_JOBS // 4):
        with transaction(sessions) as session:
            for _ in range(4):
                submit_one(session)
        with transaction(sessions) as session:
            running = claimed(session)
        with transaction(sessions) as session:
            end(session, *running)
    with transaction(sessions) as session:
        assert deletion.prune_jobs(session, before=database_now(session)) == NUM_JOBS
    with transaction(sessions) as session:
        session.execute(text("SELECT pg_stat_force_next_flush()"))

    def is_vacuumed() -> bool:
        with sessions() as session:
            return session.scalar(vacuumed) != before

    eventually(is_vacuumed)
