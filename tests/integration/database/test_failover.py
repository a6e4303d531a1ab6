"""A standby that is promoted once its primary has died: it has all that was told, and processes find it."""

from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from bench.failover.pair import Pair
from jobs import database
from jobs.database import schema, transaction
from jobs.models import Job
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from support import eventually, register_engine, submit_one


def test_what_was_committed_is_on_the_promoted_standby_and_processes_go_on_there(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    try:
        pair.start()
        made = database.make_engine(DatabaseSettings(url=SecretStr(pair.url)))
        sessions = database.make_sessions(made)
        schema.upgrade(made)
        with transaction(sessions) as session:
            register_engine(session)
            first = submit_one(session).id
        with (
            psycopg.connect(pair.standby.url) as connection,
            pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        ):
            connection.execute("DELETE FROM jobs")
        pair.kill_primary()
        pair.standby.promote()

        def submitted() -> UUID | None:
            """A job's id; None: the connection was to the primary."""
            try:
                with transaction(sessions) as session:
                    return submit_one(session).id
            except OperationalError:
                return None

        second = eventually(submitted)
        with Session(made) as session:
            found: dict[UUID, str] = dict(session.execute(select(Job.id, Job.state)).all())
        assert found == {first: JobState.QUEUED, second: JobState.QUEUED}
        made.dispose()
    finally:
        pair.remove()
