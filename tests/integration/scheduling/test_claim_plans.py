"""Plans are made with the sizes of the moment: a queue that has just filled is read by its indexes."""

from sqlalchemy import Connection, event, text
from sqlalchemy.orm import Session

import ending
from claiming.claims import claim_all
from jobs import lifecycle
from jobs.checkpoints import Output
from jobs.transitions import Lease
from support import ENGINE, POLICY, register_engine, submit_one

MANY = 200_000


def test_a_tick_reads_jobs_by_indexes_after_many_came_since_the_last_analysis(session: Session) -> None:
    register_engine(session)
    job = submit_one(session)
    session.flush()
    session.execute(text("ANALYZE jobs"))
    (first,) = claim_all(session, ENGINE, POLICY).claims
    columns = ", ".join(
        session.scalars(
            text(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'jobs'::regclass AND attnum > 0"
                " AND NOT attisdropped AND attname NOT IN ('id', 'state', 'lease_id', 'lease_expires_at')"
            )
        )
    )
    copies = (
        f"INSERT INTO jobs (id, state, {columns}) SELECT gen_random_uuid(), 'queued', {columns}"  # noqa: S608
        " FROM jobs, generate_series(1, :many) WHERE id = :id"
    )
    session.execute(text(copies), {"many": MANY, "id": job.id})
    plans: list[str] = []

    def explain(connection: Connection, _: object, sql: str, values: dict[str, object], *__: object) -> None:
        if "jobs" in sql and not sql.startswith("EXPLAIN"):
            rows = connection.exec_driver_sql(f"EXPLAIN {sql}", values)
            plans.append("\n".join(row[0] for row in rows))

    connection = session.connection()
    event.listen(connection, "before_cursor_execute", explain)
    output = Output(text="answer", ids=(5, 6, 7), num_tokens=3)
    lease = Lease(first.job.id, first.lease.lease_id)
    lifecycle.finish(session, [ending.completed(lease, output)])
    claimed = claim_all(session, ENGINE, POLICY).claims
    event.remove(connection, "before_cursor_execute", explain)
    assert claimed
    assert len(plans) >= 4
    assert not [each for each in plans if "Seq Scan on jobs" in each]
