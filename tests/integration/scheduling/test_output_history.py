"""What peers generated is read in few rows, and remembered for as long as it may be."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete
from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Rows, Statement
from jobs.models import DEFAULT_TENANT, Reservation
from jobs.scheduling import output_history
from jobs.scheduling.output_history import Group, History
from jobs.states import JobState
from support import job_in, new_tenant


@pytest.fixture
def num_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each reading of a history took."""
    found: list[int] = []
    fetch = statements.fetch

    def noted(session: Session, statement: Statement, given: Mapping[str, Any]) -> Rows:
        rows = fetch(session, statement, given)
        if statement is output_history._NEWEST:
            found.append(len(rows))
        return rows

    monkeypatch.setattr(statements, "fetch", noted)
    return found


def completed(session: Session, *outputs: int, **columns: object) -> None:
    """Jobs that generated so many tokens, the newest first."""
    ended = []
    for _ in outputs:
        ended.append(job_in(session, JobState.COMPLETED))
        session.execute(delete(Reservation))  # as if the engine had confirmed the end
    for job, produced in zip(reversed(ended), outputs, strict=True):
        job.completion_tokens = produced
        for name, value in columns.items():
            setattr(job, name, value)
    session.flush()


def test_however_many_jobs_a_group_has_its_outputs_are_one_row(session: Session, num_rows: list[int]) -> None:
    other = new_tenant(session)
    completed(session, 5, 3, 9, 4)
    completed(session, 7, 8, tenant_id=other)
    completed(session, 2, task="summarize")
    groups: list[Group] = [
        (DEFAULT_TENANT, "generate", None),
        (other, "generate", None),
        (DEFAULT_TENANT, "summarize", None),
        (other, "summarize", None),
    ]
    num_rows.clear()  # of the claims
    found = History().peers(session, groups)
    assert [list(found[each].near(100)) for each in groups] == [[3, 4, 5, 9], [7, 8], [2], []]
    assert num_rows == [len(groups)]


def test_of_many_jobs_the_newest_count(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    group: Group = (DEFAULT_TENANT, "generate", None)
    completed(session, *range(10, 40))
    sql = output_history._NEWEST.sql.replace("LIMIT 200", "LIMIT 4")
    assert sql != output_history._NEWEST.sql
    monkeypatch.setattr(output_history, "_NEWEST", Statement(sql))
    assert list(History().peers(session, [group])[group].near(100)) == [10, 11, 12, 13]


def test_outputs_are_read_again_only_once_they_are_old(session: Session, num_rows: list[int]) -> None:
    group: Group = (DEFAULT_TENANT, "generate", None)
    kept, forgotten = History(keep=timedelta(hours=1)), History()
    for produced in (5, 6):
        completed(session, produced)
        num_rows.clear()  # of the claims
        for history in (kept, forgotten):
            history.peers(session, [group])
    assert len(num_rows) == 1, "only what forgets reads again"
    assert list(kept.peers(session, [group])[group].near(100)) == [5]
    assert list(forgotten.peers(session, [group])[group].near(100)) == [5, 6]
