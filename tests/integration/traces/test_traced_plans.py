"""A round looks only at what is to be written, however many rows there are."""

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from jobs.traces import ended


@pytest.mark.parametrize("limit", [1, ended.MAX_ROWS])
def test_each_look_for_what_has_ended_uses_an_index_of_it(session: Session, limit: int) -> None:
    asked: list[str] = []

    def note(connection: Connection, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if "SKIP LOCKED" in statement and not statement.startswith("EXPLAIN"):
            found = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)  # type: ignore[arg-type]
            asked.append("\n".join(row[0] for row in found))

    session.execute(text("SET LOCAL enable_seqscan = off"))
    connection = session.connection()
    event.listen(connection, "before_cursor_execute", note)
    ended.take(session, limit=limit)
    event.remove(connection, "before_cursor_execute", note)
    assert [f"ix_{table}_untraced" in plan for table, plan in zip(TABLES, asked, strict=True)] == [True] * 3


TABLES = ("jobs", "summaries", "batches")
