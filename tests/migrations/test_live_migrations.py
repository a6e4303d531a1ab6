"""Migrations beside a system that runs, and migrations that died."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import DEVNULL, PIPE, Popen

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from jobs.database import schema
from support import eventually

BUILDING = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' AND state = 'active' AND datname = current_database()"
)
# What the earlier form of revision 0009 did in one transaction beside the present one.
OF_BEFORE = (
    "CREATE INDEX ix_jobs_summary ON jobs (summary_id) WHERE summary_id IS NOT NULL",
    "CREATE INDEX ix_jobs_blocked ON jobs (id) WHERE state = 'blocked'",
    "ALTER TABLE webhook_events ADD CONSTRAINT uq_webhook_events_summary_id_type UNIQUE (summary_id, type)",
    "ALTER TABLE webhook_events VALIDATE CONSTRAINT ck_webhook_events_one_subject",
)


@contextmanager
def old_transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction with a snapshot: concurrent index builds wait until it ends."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        connection.execute(text("SELECT count(*) FROM jobs"))
        yield connection
        connection.rollback()


@contextmanager
def upgrading(engine: Engine, *, number: int = 1) -> Iterator[list[Popen[str]]]:
    """So many upgrades at once, each a process; they have ended when the context ends."""
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]
    environment = os.environ | {"LONGBATCH_DATABASE__URL": url}
    processes = [
        Popen(command, env=environment, stdout=DEVNULL, stderr=PIPE, text=True) for _ in range(number)
    ]
    try:
        yield processes
        for process in processes:
            process.communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def building(engine: Engine) -> int:
    """The backend that builds an index, once it does."""

    def look() -> int | None:
        with engine.connect() as connection:
            found: int | None = connection.scalar(text(BUILDING))
            return found

    pid = eventually(look)
    assert pid is not None
    return pid


def revision(engine: Engine) -> str:
    with engine.connect() as connection:
        found: str = connection.scalars(text("SELECT version_num FROM alembic_version")).one()
        return found


def unready(engine: Engine) -> set[str]:
    """Indexes half built and constraints not validated."""
    query = (
        "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
        " UNION ALL SELECT conname FROM pg_constraint WHERE NOT convalidated"
    )
    with engine.connect() as connection:
        return set(connection.scalars(text(query)))


def assert_is_newest(engine: Engine) -> None:
    assert revision(engine) == schema.head()
    assert unready(engine) == set()
    with engine.connect() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.check(config)  # raises when a model and the schema differ


def test_writers_of_jobs_do_not_wait_for_an_index(empty: Engine) -> None:
    schema.upgrade(empty, "0009")
    with old_transaction(empty) as old:
        with upgrading(empty) as (upgrade,):
            building(empty)
            with empty.begin() as connection:
                connection.execute(text("SET LOCAL lock_timeout = '100ms'"))
                connection.execute(text("UPDATE jobs SET rank = rank"))
                connection.execute(text("UPDATE webhook_events SET type = type"))
            assert upgrade.poll() is None
            old.rollback()
        assert upgrade.returncode == 0
    assert_is_newest(empty)


def test_an_index_that_was_left_half_built_is_built_again(empty: Engine) -> None:
    schema.upgrade(empty, "0009")
    with old_transaction(empty):
        with upgrading(empty) as (upgrade,):
            pid = building(empty)
            with empty.begin() as connection:
                connection.execute(text("SELECT pg_terminate_backend(:pid, 30000)"), {"pid": pid})
        assert upgrade.returncode != 0
    assert "ix_jobs_summary" in unready(empty)
    schema.upgrade(empty)
    assert_is_newest(empty)


def test_two_upgrades_at_once_do_not_wait_for_each_other_s_snapshots(empty: Engine) -> None:
    schema.upgrade(empty, "0009")
    with old_transaction(empty) as old:
        with upgrading(empty, number=2) as upgrades:
            building(empty)
            old.rollback()
        assert [upgrade.returncode for upgrade in upgrades] == [0, 0]
    assert_is_newest(empty)


def test_a_migration_that_fails_leaves_those_before_it_applied(empty: Engine) -> None:
    schema.upgrade(empty, "0007")
    with empty.begin() as connection:  # in the way of 0009
        connection.execute(text("CREATE TABLE summaries (id int)"))
    with pytest.raises(DBAPIError):
        schema.upgrade(empty)
    assert revision(empty) == "0008"
    with empty.begin() as connection:
        connection.execute(text("DROP TABLE summaries"))
    schema.upgrade(empty)
    assert_is_newest(empty)


def make_earlier_0009(empty: Engine) -> None:
    """Upgrade to what 0009 once made."""
    schema.upgrade(empty, "0009")
    with empty.begin() as connection:
        for statement in OF_BEFORE:
            connection.execute(text(statement))


def test_a_database_with_an_earlier_form_of_0009_comes_to_the_same_schema(empty: Engine) -> None:
    make_earlier_0009(empty)
    schema.upgrade(empty)
    assert_is_newest(empty)
    schema.downgrade(empty, "0008")
    schema.upgrade(empty)
    assert_is_newest(empty)


def test_the_earlier_form_of_0009_can_be_taken_back(empty: Engine) -> None:
    make_earlier_0009(empty)
    schema.downgrade(empty, "0008")
    assert revision(empty) == "0008"


ENDED_RETRY = """
    INSERT INTO files (id, tenant_id, purpose, filename, state, created_at)
    SELECT gen_random_uuid(), id, 'batch', 'retry.jsonl', 'growing', now() FROM tenants LIMIT 1;
    INSERT INTO batches (id, tenant_id, state, endpoint, completion_window, input_file_id, request_sha256,
        created_at, expires_at, cancelled_at)
    SELECT gen_random_uuid(), tenant_id, 'cancelled', '/v1/completions', '24h', id, '', now(), now(), now()
    FROM files
"""
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.mark.parametrize("busy", ["documents", "files"])
def test_writers_of_jobs_do_not_wait_while_turns_wait_for_another_table(empty: Engine, busy: str) -> None:
    schema.upgrade(empty, "0012")
    with empty.begin() as connection:
        connection.execute(text(ENDED_RETRY))
    with empty.connect() as other:
        other.execute(text(f"SELECT id FROM {busy} FOR UPDATE"))  # noqa: S608  # our own names
        with upgrading(empty) as (upgrade,):
            with empty.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                eventually(lambda: connection.scalar(text(WAITING)))
            with empty.begin() as connection:
                connection.execute(text("SET LOCAL lock_timeout = '100ms'"))
                connection.execute(text("UPDATE jobs SET rank = rank"))
                connection.execute(text("UPDATE batches SET state = state"))
            other.rollback()
        assert upgrade.returncode == 0
    with empty.connect() as connection:
        assert connection.scalars(text("SELECT state FROM files")).all() == ["deleted"]
