"""A queue that fills fast is read by its indexes: plans are no better informed than the last ANALYZE."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming.claims import claim_all
from jobs import database, leases, lifecycle, queries
from jobs.checkpoints import Output
from jobs.finishing import JobEnd
from jobs.leases import JobProgress
from jobs.models import Job
from jobs.scheduling import growth
from jobs.scheduling.growth import Extension
from jobs.settings import DatabaseSettings
from jobs.states import AttemptOutcome, JobState
from jobs.transitions import Lease
from support import ENGINE, POLICY, register_engine, submit_one

T = TypeVar("T")
MANY = 200_000
# Pages of tables and indexes; a page counts each time that it is visited. Whatever reads all rows visits
# thousands.
MOST_PAGES = 1_000
ROUNDS = 12  # psycopg prepares a statement at its sixth execution
PAGES = text("""
    SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) FROM pg_class
    WHERE relkind IN ('r', 'i') AND relnamespace = current_schema()::regnamespace
    """)
OUTPUT = Output(text="answer", ids=(5, 6, 7), num_tokens=3)


@pytest.fixture(
    params=[
        pytest.param({"plan_cache_mode": "force_generic_plan"}, id="prepared while tables are small"),
        pytest.param({"plan_cache_mode": "force_custom_plan"}, id="planned for each execution"),
        pytest.param({"plan_cache_mode": "force_custom_plan", "enable_seqscan": "on"}, id="behind a pooler"),
    ]
)
def session(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings, request: pytest.FixtureRequest
) -> Iterator[Session]:
    """One open session of a new connection, on a database without jobs."""
    assert sessions
    made = database.make_engine(database_settings, pool_size=1)
    with Session(made) as opened:
        for name, value in request.param.items():
            opened.execute(text(f"SET LOCAL {name} = {value}"))
        yield opened
    made.dispose()


def test_no_statement_of_a_run_reads_a_table_that_grew_since_the_last_analysis(session: Session) -> None:
    register_engine(session)
    run_one(session)
    session.execute(text("ANALYZE"))
    for _ in range(ROUNDS):
        run_one(session)
    waiting = submit(session)
    grow(session, waiting)
    pages = run_one(session)
    assert not {verb: number for verb, number in pages.items() if number > MOST_PAGES}


def test_a_column_that_a_migration_adds_breaks_no_prepared_statement(session: Session) -> None:
    """A release's migrations run while workers of the release before work."""
    count = text("SELECT count(*) FROM pg_prepared_statements")
    register_engine(session)
    for _ in range(ROUNDS):
        run_one(session)
    before = session.scalar(count)
    # psycopg must not see it: it forgets what it has prepared after an ALTER TABLE of its own.
    session.execute(text("DO $$ BEGIN ALTER TABLE jobs ADD COLUMN added text; END $$"))
    run_one(session)
    assert session.scalar(count) >= before > 20


def submit(session: Session) -> Job:
    """Queue a job that begins like others."""
    job = submit_one(session)
    job.family = b"a family"
    session.flush()
    return job


def run_one(session: Session) -> Counter[str]:
    """Submit a job and run what fits, as workers do; return the most pages that each verb visited."""
    pages = Counter[str]()

    def count(name: str, verb: Callable[[], T]) -> T:
        before = session.scalar(PAGES)
        result = verb()
        session.flush()
        pages[name] = max(pages[name], int(session.scalar(PAGES) - before))
        return result

    def claim() -> list[Lease]:
        claims = count("claim", lambda: claim_all(session, ENGINE, POLICY).claims)
        assert claims
        return [each.lease for each in claims]

    def finish(ends: Sequence[JobEnd]) -> set[JobState | None]:
        return {each.state for each in count("finish", lambda: lifecycle.finish(session, ends)).values()}

    unwanted = submit(session)
    submit(session)
    count("cancel", lambda: lifecycle.cancel(session, unwanted.id, tenant_id=unwanted.tenant_id))
    held = claim()
    span = timedelta(seconds=60)
    renewed = count("renew", lambda: leases.renew(session, held, lease=span))
    stops = count("read stops", lambda: leases.read_stops(session, held))
    reports = [JobProgress(each, 1, span) for each in held]
    reported = count("report", lambda: leases.report_all(session, reports))
    saved = count("checkpoint", lambda: leases.checkpoint_all(session, held, [OUTPUT for _ in held]))
    assert renewed == set(stops) == set(reported) == saved == {each.lease_id for each in held}
    session.execute(text("UPDATE reservations SET overtakes = job_id"))
    asked = [Extension(each, 3) for each in held]
    count("extend", lambda: growth.extend(session, ENGINE, asked, policy=POLICY))
    count("preempt", lambda: lifecycle.request_preemption(session, [each.job_id for each in held]))
    count("read", lambda: queries.find_jobs(session, job_ids=[each.job_id for each in held], ended_ids=[]))
    released = [
        JobEnd(
            job_id=each.job_id,
            lease_id=each.lease_id,
            verb="release",
            outcome=AttemptOutcome.RELEASED,
            engine_is_done=True,
        )
        for each in held
    ]
    assert finish(released) == {JobState.QUEUED}
    assert finish([ending.completed(each, OUTPUT) for each in claim()]) == {JobState.COMPLETED}
    return pages


def grow(session: Session, job: Job) -> None:
    """Queue many jobs like this one, each with a checkpoint and a run."""
    columns = ", ".join(
        session.scalars(
            text(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'jobs'::regclass AND attnum > 0"
                " AND NOT attisdropped AND attname <> 'id'"
            )
        )
    )
    jobs = (
        f"INSERT INTO jobs (id, {columns}) SELECT gen_random_uuid(), {columns}"  # noqa: S608
        " FROM jobs, generate_series(1, :many) WHERE id = :id"
    )
    checkpoints = """
        INSERT INTO checkpoints (job_id, output, output_ids, num_tokens, fingerprint, replaced)
        SELECT id, '', '', 1, '', false FROM jobs WHERE state = 'queued' AND id <> :id
    """
    runs = """
        INSERT INTO attempts (job_id, lease_id, engine_name, started_at, ended_at, outcome, prompt_tokens)
        SELECT id, id, '', now(), now(), 'released', 1 FROM jobs WHERE state = 'queued'
    """
    session.execute(text("SET LOCAL session_replication_role = replica"))  # checks no foreign keys
    session.execute(text(jobs), {"many": MANY, "id": job.id})
    session.execute(text(checkpoints), {"id": job.id})
    session.execute(text(runs))
    session.execute(text("SET LOCAL session_replication_role = origin"))
