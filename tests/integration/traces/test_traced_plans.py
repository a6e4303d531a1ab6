"""A round looks only at what is to be written, however many rows there are."""

from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from jobs.files.storage import DirectoryStore
from jobs.models import DEFAULT_TENANT
from jobs.traces import ended
from owned.everything import fill

TABLES = ("jobs", "summaries", "batches")
NUM_ROWS = 2000


def fill_with_copies(session: Session, table: str) -> None:
    """Copy one of the table's rows many times, and tell the planner."""
    copy = "jsonb_populate_record(one, jsonb_build_object('id', gen_random_uuid()))"
    one = f"{table} AS one WHERE id = (SELECT id FROM {table} LIMIT 1)"  # noqa: S608  # our own names
    copies = f"(SELECT one, generate_series(1, {NUM_ROWS}) FROM {one}) AS copies"  # noqa: S608
    session.execute(text(f"INSERT INTO {table} SELECT ({copy}).* FROM {copies}"))  # noqa: S608
    session.execute(text(f"ANALYZE {table}"))


@pytest.mark.parametrize("limit", [1, ended.MAX_ROWS])
def test_each_look_for_what_has_ended_uses_an_index_of_it(
    session: Session, tmp_path: Path, limit: int
) -> None:
    fill(session, DEFAULT_TENANT, "mark", DirectoryStore(tmp_path))
    for table in TABLES:
        fill_with_copies(session, table)
    asked: list[str] = []

    def note(connection: Connection, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if "SKIP LOCKED" in statement and not statement.startswith("EXPLAIN"):
            found = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)  # type: ignore[arg-type]
            asked.append("\n".join(row[0] for row in found))

    connection = session.connection()
    event.listen(connection, "before_cursor_execute", note)
    ended.take(session, limit=limit)
    event.remove(connection, "before_cursor_execute", note)
    assert [f"ix_{table}_untraced" in plan for table, plan in zip(TABLES, asked, strict=True)] == [True] * 3
